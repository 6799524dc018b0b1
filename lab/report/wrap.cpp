#include "lab/report/wrap.h"

#include <algorithm>
#include <charconv>
#include <cstdlib>

namespace demi::report {

std::string wrapped(std::string_view words, std::size_t indent, std::size_t width) {
  constexpr std::size_t kNarrowest = 20;
  if (width == 0) return std::string(words) + "\n";
  const std::size_t room = std::max(width, indent + kNarrowest) - indent;
  std::string lines;
  const auto add = [&](std::string_view line) {
    lines.append(lines.empty() ? 0 : indent, ' ').append(line).append("\n");
  };
  for (const std::string& filled : wrap_words(words, room)) {
    std::string_view line = filled;
    // A word longer than a line, such as the bits of a number.
    while (display_width(line) > room) {
      const std::string piece = cut_to_width(line, room);
      add(piece);
      line.remove_prefix(piece.size());
    }
    add(line);
  }
  return lines.empty() ? "\n" : lines;
}

std::string message_lines(std::string_view kind, std::string_view text, std::size_t width) {
  std::string all;
  while (!text.empty() && text.back() == '\n') text.remove_suffix(1);
  for (std::size_t at = 0; at <= text.size();) {
    const std::size_t end = std::min(text.find('\n', at), text.size());
    std::string_view line = text.substr(at, end - at);
    const std::size_t blanks = std::min(line.find_first_not_of(' '), line.size());
    const std::string before =
        (at == 0 ? std::string(kind) : "") + std::string(line.substr(0, blanks));
    if (width == 0 || display_width(before) + display_width(line.substr(blanks)) <= width) {
      all.append(before).append(line.substr(blanks)).append("\n");
    } else {
      all += before + wrapped(line, display_width(before), width);
    }
    at = end + 1;
  }
  return all;
}

std::size_t help_width(const Terminal& terminal) {
  constexpr std::size_t kLeast = 50, kMost = 100;
  std::size_t width = terminal.width == 0 ? kMost : terminal.width;
  if (const char* columns = std::getenv("COLUMNS")) {
    const std::string_view text = columns;
    std::size_t asked = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), asked);
    if (error == std::errc() && end == text.data() + text.size() && asked > 0) width = asked;
  }
  return std::clamp(width, kLeast, kMost);
}

}  // namespace demi::report
