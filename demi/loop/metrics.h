#pragma once

#include <vector>

#include "demi/loop/observer.h"
#include "demi/step/step_result.h"

namespace demi::loop {

/// Loss scale, norm and whether it was skipped, of all optimizers' steps together. Waits for the
/// device.
void add_results(const std::vector<StepResult>& results, bool scaled, StepMetrics& record);

}  // namespace demi::loop
