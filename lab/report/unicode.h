#pragma once

#include <cstddef>
#include <string_view>

namespace demi::report {

inline constexpr char32_t kReplacement = 0xFFFD;

/// Reads one code point at `at` and moves on. Broken UTF-8 (RFC 3629: overlong, surrogate,
/// truncated, above 10FFFF) gives U+FFFD and moves by one byte, so that the reader finds its feet
/// again.
char32_t next_code_point(std::string_view text, std::size_t& at);

/// C0, C1, DEL, line separators, and the marks that reorder text on a screen (bidirectional
/// controls).
bool is_control(char32_t code);

/// 0, 1 or 2 columns, by the ranges of Unicode's EastAsianWidth (W and F) and the common combining
/// blocks.
std::size_t column_width(char32_t code);

/// "x" for ×, "u" for µ, "-" for the dashes, "?" where there is none.
std::string_view ascii_likeness(char32_t code);

}  // namespace demi::report
