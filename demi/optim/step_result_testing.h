#pragma once

#include <torch/types.h>

#include "demi/step/step_result.h"

namespace demi::optim::testing {

inline const StepResult kTaken(nullptr, StepResult::Numbers{.found_inf = 0}, {});
inline const StepResult kSkipped(nullptr, StepResult::Numbers{.found_inf = 1}, {});

/// The result of a device that decides by itself.
inline StepResult on_device(float found_inf) {
  return {nullptr, at::tensor({found_inf, 1.F, 1.F}), {}};
}

}  // namespace demi::optim::testing
