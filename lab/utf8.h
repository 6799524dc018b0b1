#pragma once

#include <utf8proc.h>

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace demi::lab {

/// Bytes of the code point at `at`, which is put into `code`; 0: it is not UTF-8, or the end.
inline std::size_t next_code(std::string_view text, std::size_t at, int32_t& code) {
  const auto taken = utf8proc_iterate(reinterpret_cast<const utf8proc_uint8_t*>(text.data()) + at,
                                      static_cast<utf8proc_ssize_t>(text.size() - at), &code);
  return taken > 0 ? static_cast<std::size_t>(taken) : 0;
}

/// The offset of the first byte that is not UTF-8; npos if there is none.
inline std::size_t first_not_utf8(std::string_view text) {
  int32_t code = 0;
  for (std::size_t at = 0, taken = 0; at < text.size(); at += taken) {
    taken = next_code(text, at, code);
    if (taken == 0) return at;
  }
  return std::string_view::npos;
}

/// Unicode's White_Space, as \s means it in the patterns of GPT-2's tokenizer.
constexpr bool is_white_space(int32_t code) {
  return (code >= 0x09 && code <= 0x0D) || code == 0x20 || code == 0x85 || code == 0xA0 ||
         code == 0x1680 || (code >= 0x2000 && code <= 0x200A) || code == 0x2028 || code == 0x2029 ||
         code == 0x202F || code == 0x205F || code == 0x3000;
}

}  // namespace demi::lab
