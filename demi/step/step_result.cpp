#include "demi/step/step_result.h"

#include <c10/core/StreamGuard.h>
#include <torch/types.h>

#include <cmath>

#include "demi/step/streams.h"

namespace demi {

StepResult::Numbers StepResult::numbers() const {
  if (!device_.defined()) return host_;
  const c10::OptionalStreamGuard guard(written_on_);
  const at::Tensor read = device_.cpu();
  const float* value = read.const_data_ptr<float>();
  return {.found_inf = value[0], .grad_norm = value[1], .scale = value[2], .above_norm = value[3]};
}

std::optional<double> StepResult::grad_norm() const {
  const float norm = numbers().grad_norm;
  // NaN means "not measured", unless the step was skipped: then the norm really was NaN.
  if (std::isnan(norm) && !skipped()) return std::nullopt;
  return norm;
}

at::Tensor StepResult::found_inf() const {
  if (!device_.defined()) return at::scalar_tensor(host_.found_inf);
  if (written_on_) optim::wait_for(*written_on_);
  at::Tensor found = device_.select(0, 0);
  if (found.is_cuda()) found.record_stream(*optim::current_stream(found.device()));
  return found;
}

StepResult StepResult::copied() const {
  if (!device_.defined()) return *this;
  const at::NoGradGuard no_grad;
  return {optimizer_, device_.clone(), loss_, optim::ordered_stream(device_.device())};
}

}  // namespace demi
