#include "lab/report/unicode.h"

#include "lab/utf8.h"

namespace demi::report {

char32_t next_code_point(std::string_view text, std::size_t& at) {
  int32_t code = 0;
  const std::size_t bytes = lab::next_code(text, at, code);
  at += bytes > 0 ? bytes : 1;
  return bytes > 0 ? static_cast<char32_t>(code) : kReplacement;
}

bool is_control(char32_t code) {
  const utf8proc_property_t& known = *utf8proc_get_property(static_cast<utf8proc_int32_t>(code));
  switch (known.category) {
    case UTF8PROC_CATEGORY_CC:
    case UTF8PROC_CATEGORY_ZL:
    case UTF8PROC_CATEGORY_ZP:
      return true;
    default:
      break;
  }
  switch (known.bidi_class) {
    case UTF8PROC_BIDI_CLASS_LRE:
    case UTF8PROC_BIDI_CLASS_LRO:
    case UTF8PROC_BIDI_CLASS_RLE:
    case UTF8PROC_BIDI_CLASS_RLO:
    case UTF8PROC_BIDI_CLASS_PDF:
    case UTF8PROC_BIDI_CLASS_LRI:
    case UTF8PROC_BIDI_CLASS_RLI:
    case UTF8PROC_BIDI_CLASS_FSI:
    case UTF8PROC_BIDI_CLASS_PDI:
      return true;
    default:
      return false;
  }
}

std::size_t column_width(char32_t code) {
  return static_cast<std::size_t>(utf8proc_charwidth(static_cast<utf8proc_int32_t>(code)));
}

std::string_view ascii_likeness(char32_t code) {
  switch (code) {
    case 0xA0:
      return " ";
    case 0xB1:
      return "+-";
    case 0xB5:
    case 0x3BC:
      return "u";
    case 0xB7:
    case 0xD7:
      return code == 0xD7 ? "x" : "*";
    case 0x2010:
    case 0x2011:
    case 0x2012:
    case 0x2013:
    case 0x2014:
    case 0x2212:
    case 0x2500:
      return "-";
    case 0x2018:
    case 0x2019:
      return "'";
    case 0x201C:
    case 0x201D:
      return "\"";
    case 0x2026:
      return "...";
    case 0x2192:
      return "->";
    default:
      return "?";
  }
}

}  // namespace demi::report
