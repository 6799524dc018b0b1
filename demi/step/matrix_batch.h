#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "demi/kernels/step_plan.h"
#include "demi/step/member.h"

namespace demi::optim {

/// Tensors in a row of a plan whose directions are made, multiplied and applied together: one, or
/// those of one shape, layout and group if the group's options say `batched`.
struct MatrixBatch {
  std::int32_t first_tensor = 0, end_tensor = 0;
  c10::ScalarType dtype = c10::ScalarType::Float;  // of the products
  std::int64_t bytes = 0;                          // of its directions
};

/// The batches of the plan's ranges with a rule of matrices, in order. `group_of`: of each member.
std::vector<MatrixBatch> matrix_batches(const kernels::StepPlan& plan,
                                        const std::vector<Member>& members,
                                        const std::vector<int>& group_of, const Groups& groups);

/// Whether two members of one group may be in one batch.
bool are_alike(const Member& a, const Member& b);

}  // namespace demi::optim
