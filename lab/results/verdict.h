#pragma once

#include <string>
#include <vector>

#include "demi/core/export.h"
#include "lab/recipes/compare.h"

namespace demi::results {

/// Whether the run's training loss is a number at its end.
DEMI_API bool ended_soundly(const recipes::RunResult& run);

/// The course of a run's training loss.
struct Learning {
  /// Means over the first and the last steps whose loss is finite. NaN or Inf where there is none,
  /// and last of a run that ends so.
  double first = 0, last = 0;
  std::string verdict;  // learned, stands still, grew, NaN or Inf; "": nothing can be said
};
/// The course of the loss of a run with steps.
DEMI_API Learning learning_of(const recipes::RunResult& run);

/// Whether the loss of one run fell by half of its magnitude or more and another run did not learn,
/// which is then the first thing to say of them.
DEMI_API bool learned_differently(const recipes::Comparison& comparison);

/// A sentence on the runs of a comparison whose training loss fell, stood still, grew or ended in
/// NaN; "" for one run.
DEMI_API std::string learning_verdict(const recipes::Comparison& comparison);

/// The verdicts on the monitored steps (--monitor): layers that are dead, since all gradients of
/// their weights were 0 in each of the steps; layers whose gradients explode or hold Inf or NaN;
/// else that there are none. Empty if the run was not monitored.
DEMI_API std::vector<std::string> health_verdicts(const recipes::RunResult& run);

}  // namespace demi::results
