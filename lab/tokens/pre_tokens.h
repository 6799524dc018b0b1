#pragma once

#include <functional>
#include <string_view>

namespace demi::tokens {

/// Splits UTF-8 text into words, which no token of GPT-2's crosses, and calls `each` with them in
/// order. Together they are the text. The rule is GPT-2's pattern (Radford et al. 2019,
/// encoder.py), of which the first alternative that matches counts:
///   's|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+
void for_each_pre_token(std::string_view text, const std::function<void(std::string_view)>& each);

}  // namespace demi::tokens
