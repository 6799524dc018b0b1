#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "demi/core/export.h"
#include "demi/step/step_result.h"

namespace torch::nn {
class Module;
}

namespace demi {

/// The running statistics of a model's normalisation layers, so that a skipped step can give them
/// back: an activation that overflowed in the forward pass is in them by then, whatever the
/// optimizer does.
///
///     demi::BatchNormGuard statistics(*model);
///     for (...) { statistics.remember(); ... backward ...;
///     statistics.restore_if_skipped(scaler.step(optimizer)); }
class DEMI_API BatchNormGuard {
 public:
  /// Every buffer named running_mean, running_var or num_batches_tracked.
  explicit BatchNormGuard(const torch::nn::Module& module);

  void remember();  // before the forward pass
  /// Does not synchronise: on a device it is decided there.
  void restore_if_skipped(const StepResult& result);

 private:
  std::vector<at::Tensor> buffers_, kept_;
};

}  // namespace demi
