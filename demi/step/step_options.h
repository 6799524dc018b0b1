#pragma once

#include <optional>

#include "demi/kernels/path.h"

namespace demi::optim {

/// How a demi optimizer steps, whatever its rule.
struct StepOptions {
  /// true: a gradient with Inf or NaN changes nothing (this costs one read of the gradients).
  /// false: such gradients are applied, as in torch::optim, unless a GradScaler is in use.
  bool skip_nonfinite = true;
  /// false: .grad of an fp32 parameter is fp32 and unscale_() divides it, as with torch::optim.
  /// true: it keeps the 16 bits that backward made, and its loss scale until the step: 2 bytes a
  /// parameter less to hold, 12 less to move. For loops that leave .grad alone between backward and
  /// step, or read it through Optimizer::unscaled_grad().
  bool low_precision_grads = false;
  /// The kernels to use. Not given: those that DEMI_KERNELS names, else the best for this machine.
  std::optional<kernels::Path> path = std::nullopt;
};

}  // namespace demi::optim
