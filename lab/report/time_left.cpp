#include "lab/report/time_left.h"

#include <cmath>

namespace demi::report {
namespace {

// Share of the preceding wait that a burst may take.
constexpr double kAtOnce = 0.05;

}  // namespace

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
