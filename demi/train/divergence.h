#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "demi/scaler/scale_rule.h"
#include "demi/train/history.h"
#include "demi/train/names.h"

namespace demi::train {

/// A loss that is NaN or Inf from the first step on is answered after this many: a loss scale that
/// is still too high overflows the gradients, never the loss, which is read before it is scaled.
inline constexpr int64_t kFirstSteps = 3;

/// Whether a step is a fault: its loss is NaN or Inf, or it was skipped where no scale is being
/// found. `loss_is_finite`: of the loss without gradient penalty, which may overflow while the
/// scale is too high.
bool is_bad(const StepMetrics& step, bool loss_is_finite, const GradScalerOptions& scaling);

/// The last steps of a run that were bad. The history may have forgotten the first of them.
struct BadSteps {
  int64_t in_a_row = 0;
  const StepMetrics& first;
};

/// Why training should stop after the last of the history's steps, and what to try; none if it
/// should go on.
std::optional<std::string> why_give_up(const History& history, const BadSteps& bad,
                                       int64_t give_up_after, const Precision& precision);

/// Why the run has failed, asked at the end of training, where one bad step or validation is
/// enough: no later step can mend it.
std::optional<std::string> why_failed(const History& history, const BadSteps& bad,
                                      int64_t give_up_after, const Precision& precision);

}  // namespace demi::train
