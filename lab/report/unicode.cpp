#include "lab/report/unicode.h"

#include <array>

namespace demi::report {
namespace {

struct CodeRange {
  char32_t first, last;
};

template <std::size_t kSize>
bool within(const std::array<CodeRange, kSize>& ranges, char32_t code) {
  for (const CodeRange& range : ranges) {
    if (code >= range.first && code <= range.last) return true;
  }
  return false;
}

}  // namespace

char32_t next_code_point(std::string_view text, std::size_t& at) {
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned char lead = byte(at++);
  if (lead < 0x80) return lead;
  const std::size_t more = lead >= 0xF0 ? 3 : lead >= 0xE0 ? 2 : 1;
  if (lead < 0xC2 || lead > 0xF4 || at + more > text.size()) return kReplacement;
  char32_t code = lead & (0x3F >> more);
  for (std::size_t i = 0; i < more; ++i) {
    if ((byte(at + i) & 0xC0) != 0x80) return kReplacement;
    code = code << 6 | (byte(at + i) & 0x3F);
  }
  static constexpr std::array<char32_t, 4> kSmallest = {0, 0x80, 0x800, 0x10000};
  if (code < kSmallest[more] || code > 0x10FFFF || (code >= 0xD800 && code <= 0xDFFF))
    return kReplacement;
  at += more;
  return code;
}

bool is_control(char32_t code) {
  return code < 0x20 || (code >= 0x7F && code < 0xA0) || code == 0x2028 || code == 0x2029 ||
         (code >= 0x202A && code <= 0x202E) || (code >= 0x2066 && code <= 0x2069);
}

std::size_t column_width(char32_t code) {
  static constexpr std::array<CodeRange, 6> kNone = {{{0x300, 0x36F},
                                                      {0x200B, 0x200F},
                                                      {0x1AB0, 0x1AFF},
                                                      {0x1DC0, 0x1DFF},
                                                      {0x20D0, 0x20FF},
                                                      {0xFE00, 0xFE0F}}};
  static constexpr std::array<CodeRange, 9> kTwo = {{{0x1100, 0x115F},
                                                     {0x2E80, 0x303E},
                                                     {0x3041, 0xA4CF},
                                                     {0xAC00, 0xD7A3},
                                                     {0xF900, 0xFAFF},
                                                     {0xFE30, 0xFE6F},
                                                     {0xFF00, 0xFF60},
                                                     {0x1F300, 0x1FAFF},
                                                     {0x20000, 0x3FFFD}}};
  if (code < 0x300) return is_control(code) ? 0 : 1;
  return within(kNone, code) ? 0 : within(kTwo, code) ? 2 : 1;
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
