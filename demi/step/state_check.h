#pragma once

#include <ATen/core/Tensor.h>

#include <string>

#include "demi/core/export.h"
#include "demi/kernels/step_table.h"
#include "demi/step/param_state.h"

namespace demi::optim {

/// Throws UsageError for a state that cannot be the parameter's: of another shape, in a dtype that
/// holds no such state, codes without their scales. `prefix`: stands before a state's name in the
/// message.
DEMI_API void check_state(const ParamState& state, const at::Tensor& parameter,
                          kernels::UpdateRule rule, const std::string& prefix = "");

}  // namespace demi::optim
