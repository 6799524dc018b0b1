#pragma once

#include <vector>

#include "demi/kernels/step_plan.h"

namespace demi::optim {
struct Member;
}

/// The passes by LibTorch's tensor operations, for devices that demi has no kernels for and for
/// fp64: the same formulas (kernels/formulas.h), with tensors in the place of numbers. One host
/// read a step and device.
namespace demi::optim::aten {

/// Pass 1 and its sums into the plan's state.
void measure(kernels::StepPlan& plan, const std::vector<Member>& members);

/// After decide, on a step that is taken: pass 2, and for LAMB its norms and pass 3.
void update(kernels::StepPlan& plan, std::vector<Member>& members);

}  // namespace demi::optim::aten
