#include "cli/status_line.h"

#include <fmt/format.h>

#include <algorithm>
#include <iostream>

namespace demi::cli {

void StatusLine::show(std::string_view words, bool is_last) const {
  const std::string text = report::printable(words, terminal_.utf8);
  if (!terminal_.interactive) {
    std::cerr << text << "\n" << std::flush;
    return;
  }
  // Leaves one column free: a full row would wrap on some terminals.
  const std::size_t width = std::max<std::size_t>(terminal_.current_width(), 2) - 1;
  std::cerr << "\r" << report::cut_to_width(text, width) << "\x1b[K" << (is_last ? "\n" : "")
            << std::flush;
}

void StatusLine::clear() const {
  if (terminal_.interactive) std::cerr << "\r\x1b[K" << std::flush;
}

void PartProgress::operator()(const std::string& part, int64_t done, int64_t parts) {
  constexpr auto kPause = std::chrono::seconds(10);
  if (part.empty()) return line_.clear();
  const auto now = std::chrono::steady_clock::now();
  if (!line_.is_interactive() && now - shown_ < kPause) return;
  shown_ = now;
  line_.show(fmt::format("{}  {} of {} done", part, done, parts), /*is_last=*/false);
}

}  // namespace demi::cli
