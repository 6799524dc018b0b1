#pragma once

#include <chrono>
#include <cstdint>
#include <optional>

#include "demi/core/export.h"

namespace demi::report {

/// The time that is left, from an exponential mean of the seconds of a step: steps older than
/// `memory` have less than a third of the weight. Pauses between epochs are left out by `pause`.
/// Steps that are reported at once, after a wait for the last of them, share that wait.
class DEMI_API TimeLeft {
 public:
  using Seconds = std::chrono::duration<double>;
  explicit TimeLeft(Seconds memory = std::chrono::seconds(20)) : memory_(memory) {}
  void pause();
  void at(std::int64_t steps_done, Seconds now);
  std::optional<Seconds> left(std::int64_t steps_to_go) const;

 private:
  struct Point {
    std::int64_t steps;
    Seconds time;
  };
  /// A wait and the steps reported right after it; counted at the end of the next wait.
  struct Burst {
    Point before, first, last;
  };
  struct Rate {
    double seconds = 0, steps = 0;  // fading sums
  };
  Rate with(const Burst& burst) const;

  Seconds memory_;
  std::optional<Point> last_;
  std::optional<Burst> open_;
  Rate rate_;
};

}  // namespace demi::report
