#include "demi/optim/step_result.h"

#include <torch/types.h>

#include <cmath>

namespace demi {

StepResult::Numbers StepResult::numbers() const {
  if (!device_.defined()) return host_;
  const at::Tensor read = device_.cpu();
  const float* value = read.const_data_ptr<float>();
  return {.found_inf = value[0], .grad_norm = value[1], .scale = value[2]};
}

std::optional<double> StepResult::grad_norm() const {
  const float norm = numbers().grad_norm;
  // A step without a norm says NaN; a norm that is itself NaN belongs to a skipped step and is
  // worth saying.
  if (std::isnan(norm) && !skipped()) return std::nullopt;
  return norm;
}

at::Tensor StepResult::found_inf() const {
  return device_.defined() ? device_.select(0, 0) : at::scalar_tensor(host_.found_inf);
}

}  // namespace demi
