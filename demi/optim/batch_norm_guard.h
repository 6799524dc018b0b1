#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "demi/core/export.h"
#include "demi/step/step_result.h"

namespace torch::nn {
class Module;
}

namespace demi {

/// Restores the running statistics of a model's normalisation layers after a skipped step: an
/// activation that overflowed in the forward pass is in them already, whatever the optimizer does.
///
///     demi::BatchNormGuard statistics(*model);
///     for (...) {
///       statistics.remember();
///       ... forward, backward ...
///       statistics.restore_if_skipped(scaler.step(optimizer));
///     }
class DEMI_API BatchNormGuard {
 public:
  /// Every buffer named running_mean, running_var or num_batches_tracked.
  explicit BatchNormGuard(const torch::nn::Module& module);

  /// Call before the forward pass.
  void remember();
  /// Does not synchronise: a device decides itself.
  void restore_if_skipped(const StepResult& result);

 private:
  std::vector<at::Tensor> buffers_, kept_;
};

}  // namespace demi
