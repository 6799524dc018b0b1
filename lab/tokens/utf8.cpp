#include "lab/tokens/utf8.h"

#include <utf8proc.h>

namespace demi::tokens {

std::size_t next_code(std::string_view text, std::size_t at, int32_t& code) {
  const auto taken = utf8proc_iterate(reinterpret_cast<const utf8proc_uint8_t*>(text.data()) + at,
                                      static_cast<utf8proc_ssize_t>(text.size() - at), &code);
  return taken > 0 ? static_cast<std::size_t>(taken) : 0;
}

std::size_t first_not_utf8(std::string_view text) {
  int32_t code = 0;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t taken = next_code(text, at, code);
    if (taken == 0) return at;
    at += taken;
  }
  return std::string_view::npos;
}

bool is_white_space(int32_t code) {
  return (code >= 0x09 && code <= 0x0D) || code == 0x20 || code == 0x85 || code == 0xA0 ||
         code == 0x1680 || (code >= 0x2000 && code <= 0x200A) || code == 0x2028 || code == 0x2029 ||
         code == 0x202F || code == 0x205F || code == 0x3000;
}

bool is_letter(int32_t code) {
  const utf8proc_category_t category = utf8proc_category(code);
  return category >= UTF8PROC_CATEGORY_LU && category <= UTF8PROC_CATEGORY_LO;
}

bool is_numeral(int32_t code) {
  const utf8proc_category_t category = utf8proc_category(code);
  return category >= UTF8PROC_CATEGORY_ND && category <= UTF8PROC_CATEGORY_NO;
}

}  // namespace demi::tokens
