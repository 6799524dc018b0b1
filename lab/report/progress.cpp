#include "lab/report/progress.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace demi::report {
namespace {

std::chrono::duration<double> steady_now() {
  return std::chrono::steady_clock::now().time_since_epoch();
}

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
  return time_left_.left(std::max<std::int64_t>(
      0, state.epochs * state.steps - (state.epoch - 1) * state.steps - state.step));
}

void Progress::draw(const ProgressState& state, bool keep) {
  drawn_at_ = options_.clock();
  if (!terminal_.interactive) {
    out_ << progress_line(state, time_left(state), 0, terminal_.utf8, false, false) << '\n'
         << std::flush;
    return;
  }
  // One column stays free: a full row would wrap on some terminals.
  const std::size_t width = std::max<std::size_t>(terminal_.current_width(), 2) - 1;
  const std::string text =
      progress_line(state, time_left(state), width, terminal_.utf8, terminal_.colour, true);
  const std::string plain =
      progress_line(state, time_left(state), width, terminal_.utf8, false, true);
  out_ << erased() << text << (keep ? "\n" : "") << std::flush;  // in one piece: nothing flickers
  drawn_width_ = keep ? 0 : display_width(plain);
}

}  // namespace demi::report
