#pragma once

#include <vector>

#include "demi/core/export.h"
#include "demi/step/step_result.h"

namespace demi::loop {

/// The learning rates that an optimizer's first group had in its last steps, if they come from the
/// table of Optimizer::set_scheduled_rates; else empty. `steps`: results of all optimizers, oldest
/// first; none follows that the optimizer has taken. A skipped step has the rate that it would have
/// used. Waits for the device.
DEMI_API std::vector<double> used_rates(const torch::optim::Optimizer& optimizer,
                                        const std::vector<const std::vector<StepResult>*>& steps);

}  // namespace demi::loop
