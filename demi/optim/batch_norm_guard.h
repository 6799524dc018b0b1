#pragma once

#include <ATen/core/Tensor.h>

#include <map>
#include <string>
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
  /// The statistics become what remember() has kept.
  void restore();
  /// Restores the statistics if the step was skipped. Does not synchronise: a device decides
  /// itself.
  void restore_if_skipped(const StepResult& result);
  /// Restores the statistics if all of these steps were skipped.
  void restore_if_skipped(const std::vector<StepResult>& results);
  /// The values that remember() kept, by the buffer's name. The tensors are the guard's own.
  std::map<std::string, at::Tensor> kept() const;
  /// Remembers these values, which kept() returned. Buffers that are not among them are remembered
  /// with their present values.
  void remember(const std::map<std::string, at::Tensor>& kept);

 private:
  std::vector<std::string> names_;
  std::vector<at::Tensor> buffers_, kept_;
};

}  // namespace demi
