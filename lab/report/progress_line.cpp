#include "lab/report/progress_line.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "lab/report/format.h"
#include "lab/report/terminal.h"

namespace demi::report {
namespace {

struct Part {
  std::string text;
  int rank;  // the highest goes first where room is short
};

std::string bar(double share, std::size_t cells, bool utf8) {
  const auto full = static_cast<std::size_t>(std::lround(share * static_cast<double>(cells)));
  std::string out;
  for (std::size_t i = 0; i < cells; ++i) out += i < full ? (utf8 ? "━" : "#") : (utf8 ? "─" : ".");
  return out;
}

double share_done(const ProgressState& state) {
  if (state.steps <= 0) return 0;
  return std::clamp(static_cast<double>(state.step) / static_cast<double>(state.steps), 0.0, 1.0);
}

std::string joined(const std::vector<Part>& parts) {
  std::string out;
  for (const Part& part : parts) {
    if (!part.text.empty()) out += (out.empty() ? "" : "  ") + part.text;
  }
  return out;
}

/// The parts of the line in reading order. A part of rank 0 without text marks the bar's place.
std::vector<Part> parts_of(const ProgressState& state,
                           std::optional<std::chrono::duration<double>> left, std::size_t width,
                           bool utf8) {
  std::vector<Part> parts;
  const auto add = [&](int rank, const std::string& text) {
    parts.push_back({printable(text, utf8), rank});
  };
  if (!state.run.empty()) add(2, state.run);
  const bool narrow = width > 0 && width < 60;
  add(1, fmt::format("{}{}/{}", narrow ? "" : "epoch ", state.epoch, state.epochs));
  if (!state.phase.empty()) add(6, state.phase);
  add(0, "");
  if (state.steps > 0) {
    add(5, fmt::format("{:3.0f} %", std::floor(share_done(state) * 100)));
  } else {
    add(5, fmt::format("step {}", format_count(state.step)));
  }
  if (state.loss) add(3, "loss " + format_loss(*state.loss));
  if (state.accuracy) add(7, "accuracy " + format_percent(*state.accuracy));
  if (state.correct)
    add(12, fmt::format("({}/{})", format_count(*state.correct), format_count(state.examples)));
  if (!state.remark.empty()) add(3, state.remark);
  if (state.learning_rate) add(9, fmt::format("lr {:.2e}", *state.learning_rate));
  if (state.loss_scale) add(10, "scale " + format_number(*state.loss_scale));
  if (state.items_per_second) add(8, format_rate(*state.items_per_second, state.items));
  if (state.memory_bytes) add(11, format_bytes(*state.memory_bytes));
  if (left) add(4, format_clock(*left) + " left");
  return parts;
}

/// Gives up the part of the highest rank until the rest fits.
void drop_until_fits(std::vector<Part>& parts, std::size_t width) {
  while (width > 0 && display_width(joined(parts)) > width && parts.size() > 2) {
    const auto least = std::max_element(
        parts.begin(), parts.end(), [](const Part& a, const Part& b) { return a.rank < b.rank; });
    parts.erase(least);
  }
}

}  // namespace

std::string progress_line(const ProgressState& state,
                          std::optional<std::chrono::duration<double>> left, std::size_t width,
                          bool utf8, bool colour, bool with_bar) {
  constexpr std::size_t kShortestBar = 8, kLongestBar = 30;
  std::vector<Part> parts = parts_of(state, left, width, utf8);
  drop_until_fits(parts, width);
  const std::size_t used = display_width(joined(parts)) + 2;
  if (with_bar && state.steps > 0 && (width == 0 || used + kShortestBar <= width)) {
    const std::size_t cells = width == 0 ? 20 : std::min(kLongestBar, width - used);
    const auto place =
        std::find_if(parts.begin(), parts.end(), [](const Part& part) { return part.rank == 0; });
    if (place != parts.end()) {
      place->text = bar(share_done(state), cells, utf8);
      if (colour) place->text = "\x1b[36m" + place->text + "\x1b[0m";
    }
    return joined(parts);
  }
  return width == 0 ? joined(parts) : cut_to_width(joined(parts), width);
}

}  // namespace demi::report
