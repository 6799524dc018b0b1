#include <cmath>

#include "demi/report/progress.h"

namespace demi::report {

void TimeLeft::at(std::int64_t steps_done, std::chrono::duration<double> now) {
  if (last_time_ && steps_done > last_steps_ && now > *last_time_) {
    const std::chrono::duration<double> passed = now - *last_time_;
    const double kept = std::exp(-passed / memory_);
    seconds_ = seconds_ * kept + passed.count();
    steps_ = steps_ * kept + static_cast<double>(steps_done - last_steps_);
  } else if (last_time_ && steps_done == last_steps_) {
    return;  // nothing done since: the pause belongs to the next step
  }
  last_time_ = now;
  last_steps_ = steps_done;
}

std::optional<std::chrono::duration<double>> TimeLeft::left(std::int64_t steps_to_go) const {
  if (steps_ <= 0) return std::nullopt;
  return std::chrono::duration<double>(seconds_ / steps_ * static_cast<double>(steps_to_go));
}

}  // namespace demi::report
