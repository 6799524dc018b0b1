#pragma once

#include "demi/core/export.h"
#include "demi/kernels/step_table.h"

// Between the passes, for tables in host memory. One thread; a few microseconds for thousands of
// tensors.
namespace demi::kernels {

/// After pass 1: adds up table.partials and sets found_inf, gradient_norm, inverse_scale, greatest
/// and sum_of_squares of the state. Changes nothing else.
DEMI_API void reduce(const StepTable& table);

/// After reduce: takes the step or skips it. Taken: `taken`, each *step and the coefficients are
/// updated. Skipped: only `skips` is. Reads table.inputs (max_norm and scale, which may have been
/// set since pass 1, and found_inf) and the scheduled rates. Once a step.
DEMI_API void decide(const StepTable& table);

/// LAMB, between update and apply_trust: the trust ratio of each tensor of the table's range into
/// its coefficients.
DEMI_API void decide_trust(const StepTable& table);

}  // namespace demi::kernels
