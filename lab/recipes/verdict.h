#pragma once

#include <string>
#include <vector>

#include "demi/core/export.h"
#include "lab/recipes/compare.h"

namespace demi::recipes {

/// Whether the run's training loss is a number at its end.
DEMI_API bool ended_soundly(const RunResult& run);

/// Whose training loss fell, stood still, grew or ended in NaN, of a comparison; "" of one run.
DEMI_API std::string learning_verdict(const Comparison& comparison);

/// Of the steps that --monitor looked at: layers that are dead, since all gradients of their
/// weights were 0 in each of them; layers whose gradients explode or hold Inf or NaN; else that
/// there are none. Empty if the run was not monitored.
DEMI_API std::vector<std::string> health_verdicts(const RunResult& run);

}  // namespace demi::recipes
