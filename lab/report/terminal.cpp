#include "lab/report/terminal.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <cstdlib>
#include <sstream>

#include "lab/report/unicode.h"

namespace demi::report {
namespace {

bool set(const char* name) {
  const char* value = std::getenv(name);
  return value != nullptr && *value != '\0';
}

bool utf8_locale() {
  for (const char* name : {"LC_ALL", "LC_CTYPE", "LANG"}) {
    if (!set(name)) continue;
    std::string value = std::getenv(name);
    std::transform(value.begin(), value.end(), value.begin(),
                   [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
    return value.find("utf-8") != std::string::npos || value.find("utf8") != std::string::npos;
  }
  return false;
}

std::size_t window_width(int fd) {
  winsize size{};
  if (fd >= 0 && ioctl(fd, TIOCGWINSZ, &size) == 0 && size.ws_col > 0) return size.ws_col;
  return 0;
}

}  // namespace

Terminal Terminal::of(int fd) {
  Terminal terminal;
  terminal.fd = fd;
  terminal.utf8 = utf8_locale();
  if (!isatty(fd)) return terminal;
  terminal.width = window_width(fd);
  if (terminal.width == 0) terminal.width = 80;
  terminal.interactive = set("TERM") && std::string_view(std::getenv("TERM")) != "dumb";
  terminal.colour = terminal.interactive && !set("NO_COLOR");
  return terminal;
}

std::size_t Terminal::current_width() const {
  const std::size_t now = interactive ? window_width(fd) : 0;
  return now > 0 ? now : width;
}

std::size_t display_width(std::string_view text) {
  std::size_t width = 0;
  for (std::size_t at = 0; at < text.size();) width += column_width(next_code_point(text, at));
  return width;
}

std::string cut_to_width(std::string_view text, std::size_t columns) {
  std::size_t width = 0;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t start = at;
    width += column_width(next_code_point(text, at));
    if (width > columns) return std::string(text.substr(0, start));
  }
  return std::string(text);
}

std::vector<std::string> wrap_words(std::string_view text, std::size_t columns) {
  std::istringstream words{std::string(text)};
  std::vector<std::string> lines;
  for (std::string word; words >> word;) {
    if (!lines.empty() && display_width(lines.back()) + 1 + display_width(word) <= columns) {
      lines.back().append(" ").append(word);
    } else {
      lines.push_back(word);
    }
  }
  return lines;
}

std::string printable(std::string_view text, bool utf8) {
  std::string out;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t start = at;
    const char32_t code = next_code_point(text, at);
    if (is_control(code) || code == kReplacement) {
      out += '?';
    } else if (utf8 || code < 0x80) {
      out += text.substr(start, at - start);
    } else {
      out += ascii_likeness(code);
    }
  }
  return out;
}

}  // namespace demi::report
