#pragma once

#include <cstddef>
#include <string_view>

namespace demi::report {

inline constexpr char32_t kReplacement = 0xFFFD;

/// Reads one code point at `at` and moves on. Broken UTF-8 (overlong, surrogate, truncated, above
/// U+10FFFF) gives U+FFFD and moves by one byte, so that the next character is found again.
char32_t next_code_point(std::string_view text, std::size_t& at);

/// Control characters, line and paragraph separators, and the marks that reorder text on a screen
/// (bidirectional controls).
bool is_control(char32_t code);

/// Columns that the character takes on a terminal: 0 (control, combining), 1 or 2 (East Asian wide,
/// emoji).
std::size_t column_width(char32_t code);

/// "x" for ×, "u" for µ, "-" for the dashes, "?" for what has no likeness.
std::string_view ascii_likeness(char32_t code);

}  // namespace demi::report
