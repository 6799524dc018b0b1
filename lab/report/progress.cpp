#include "lab/report/progress.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

#include "lab/report/format.h"

namespace demi::report {
namespace {

std::chrono::duration<double> steady_now() {
  return std::chrono::steady_clock::now().time_since_epoch();
}

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
  if (state.share_of_peak) add(12, format_percent(*state.share_of_peak, 1) + " of peak FLOPs");
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

// Share of the preceding wait that a burst may take.
constexpr double kAtOnce = 0.05;

}  // namespace

Progress::Progress(std::ostream& out, Terminal terminal, ProgressOptions options)
    : out_(out), terminal_(terminal), options_(std::move(options)) {
  if (!options_.clock) options_.clock = steady_now;
}

Progress::~Progress() {
  try {
    clear();
  } catch (...) {  // NOLINT(bugprone-empty-catch): a stream may throw; a destructor may not
  }
}

void Progress::begin_epoch(const ProgressState& state) {
  time_left_.pause();
  time_left_.at((state.epoch - 1) * state.steps + state.step, options_.clock());
  draw(state, false);
}

void Progress::update(const ProgressState& state) {
  const std::chrono::duration<double> now = options_.clock();
  time_left_.at((state.epoch - 1) * state.steps + state.step, now);
  const std::chrono::duration<double> every =
      terminal_.interactive ? options_.redraw : options_.line;
  if (!drawn_at_ || now - *drawn_at_ >= every) draw(state, false);
}

void Progress::end_epoch(const ProgressState& state) {
  time_left_.at((state.epoch - 1) * state.steps + state.step, options_.clock());
  draw(state, true);
}

void Progress::pause() { time_left_.pause(); }

void Progress::message(const std::string& text) {
  clear();
  out_ << printable(text, terminal_.utf8) << '\n' << std::flush;
}

std::string Progress::erased() {
  if (drawn_width_ == 0) return "";
  // The window may have become narrower since: then the line takes several rows by now.
  const std::size_t width = terminal_.current_width();
  const std::size_t rows_above = width > 0 ? (drawn_width_ - 1) / width : 0;
  drawn_width_ = 0;
  return rows_above > 0 ? fmt::format("\x1b[{}A\r\x1b[J", rows_above) : "\r\x1b[K";
}

void Progress::clear() {
  if (drawn_width_ > 0) out_ << erased() << std::flush;
}

std::optional<std::chrono::duration<double>> Progress::time_left(const ProgressState& state) const {
  if (state.steps <= 0) return std::nullopt;
  std::int64_t last = state.epochs * state.steps;
  if (state.last_step > 0) last = std::min(last, state.last_step);
  const std::int64_t done = (state.epoch - 1) * state.steps + state.step;
  return time_left_.left(std::max<std::int64_t>(0, last - done));
}

void Progress::draw(const ProgressState& state, bool keep) {
  drawn_at_ = options_.clock();
  if (!terminal_.interactive) {
    out_ << progress_line(state, time_left(state), 0, terminal_.utf8, false, false) << '\n'
         << std::flush;
    return;
  }
  // Leaves one column free: a full row would wrap on some terminals.
  const std::size_t width = std::max<std::size_t>(terminal_.current_width(), 2) - 1;
  const std::string text =
      progress_line(state, time_left(state), width, terminal_.utf8, terminal_.colour, true);
  const std::string plain =
      progress_line(state, time_left(state), width, terminal_.utf8, false, true);
  out_ << erased() << text << (keep ? "\n" : "") << std::flush;  // in one piece: nothing flickers
  drawn_width_ = keep ? 0 : display_width(plain);
}

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

TimeLeft::Rate TimeLeft::with(const Burst& burst) const {
  const Seconds passed = burst.last.time - burst.before.time;
  const double kept = std::exp(-passed / memory_);
  return {rate_.seconds * kept + passed.count(),
          rate_.steps * kept + static_cast<double>(burst.last.steps - burst.before.steps)};
}

void TimeLeft::pause() {
  if (open_) rate_ = with(*open_);
  open_.reset();
  last_.reset();
}

void TimeLeft::at(std::int64_t steps_done, Seconds now) {
  const Point point{steps_done, now};
  if (!last_) {
    last_ = point;
    return;
  }
  if (steps_done == last_->steps) return;  // nothing done: the pause belongs to the next step
  const bool at_once =
      open_ && now - open_->first.time <= kAtOnce * (open_->first.time - open_->before.time);
  if (at_once) {
    open_->last = point;
  } else {
    if (open_) rate_ = with(*open_);
    open_ = Burst{*last_, point, point};
  }
  last_ = point;
}

std::optional<TimeLeft::Seconds> TimeLeft::left(std::int64_t steps_to_go) const {
  const Rate rate = rate_.steps > 0 || !open_ ? rate_ : with(*open_);
  if (rate.steps <= 0) return std::nullopt;
  return Seconds(rate.seconds / rate.steps * static_cast<double>(steps_to_go));
}

}  // namespace demi::report
