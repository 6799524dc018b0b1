#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace demi::tokens {

/// Bytes of the code point at `at`, which is put into `code`; 0: it is not UTF-8, or the end.
std::size_t next_code(std::string_view text, std::size_t at, int32_t& code);

/// The offset of the first byte that is not UTF-8; npos if there is none.
std::size_t first_not_utf8(std::string_view text);

/// Unicode's White_Space, as \s means it in the patterns of GPT-2's tokenizer.
bool is_white_space(int32_t code);
/// Unicode's general categories L and N.
bool is_letter(int32_t code);
bool is_numeral(int32_t code);

}  // namespace demi::tokens
