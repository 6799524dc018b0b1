#pragma once

#include <optional>

#include "demi/kernels/path.h"

namespace demi::optim {

/// How a demi optimizer steps, whatever its rule.
struct StepOptions {
  /// true: a gradient with Inf or NaN changes nothing (this costs one read of the gradients).
  /// false: such gradients are applied, as in torch::optim, unless a GradScaler is in use.
  bool skip_nonfinite = true;
  /// true: .grad of an fp32 parameter keeps the 16-bit dtype that backward made. false: .grad is
  /// always fp32, as torch::optim leaves it.
  bool low_precision_grads = true;
  /// The kernels to use. Not given: those that DEMI_KERNELS names, else the best for this machine.
  std::optional<kernels::Path> path = std::nullopt;
};

}  // namespace demi::optim
