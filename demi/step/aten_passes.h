#pragma once

#include <vector>

#include "demi/kernels/step_plan.h"
#include "demi/step/matrix_options.h"

namespace demi::optim {
struct Member;
}

/// The passes by LibTorch's tensor operations, for fp64 and for devices without kernels of demi's:
/// the same formulas (kernels/formulas.h) on tensors instead of numbers. One host read a step and
/// device.
namespace demi::optim::aten {

/// Pass 1 and its sums into the plan's state.
void measure(kernels::StepPlan& plan, const std::vector<Member>& members);

/// Pass 2, and for a trust ratio (LAMB) its norms and pass 3, for a rule of matrices (Muon) the
/// products and pass 3. `matrices`: by group; empty if there is no such rule. Call after decide, if
/// the step is not skipped.
void update(kernels::StepPlan& plan, std::vector<Member>& members,
            const std::vector<MatrixOptions>& matrices);

}  // namespace demi::optim::aten
