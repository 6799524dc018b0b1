#include "lab/report/markup.h"

#include "lab/report/unicode.h"

namespace demi::report {

std::string escape_html(std::string_view text) {
  std::string out;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t start = at;
    const char32_t code = next_code_point(text, at);
    switch (code) {
      case '&':
        out += "&amp;";
        break;
      case '<':
        out += "&lt;";
        break;
      case '>':
        out += "&gt;";
        break;
      case '"':
        out += "&quot;";
        break;
      case '\'':
        out += "&#39;";
        break;
      case '\n':
      case '\t':
        out += static_cast<char>(code);
        break;
      default:
        // FFFE and FFFF are no characters; XML 1.0, section 2.2.
        if (is_control(code) || code == kReplacement || (code & 0xFFFE) == 0xFFFE) {
          out += "\xEF\xBF\xBD";
        } else {
          out += text.substr(start, at - start);
        }
    }
  }
  return out;
}

}  // namespace demi::report
