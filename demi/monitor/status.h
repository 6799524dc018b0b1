#pragma once

#include <torch/nn/module.h>
#include <torch/optim/optimizer.h>

#include <cstdint>
#include <iosfwd>
#include <optional>
#include <string>
#include <vector>

#include "demi/core/export.h"
#include "demi/monitor/find_nonfinite.h"
#include "demi/profile/memory.h"
#include "demi/scaler/grad_scaler.h"

namespace demi {

/// The state of a training loop's mixed precision.
struct DEMI_API Status {
  /// The scaler's state.
  struct Scaling {
    double scale = 1;  // of the next loss
    /// Clean steps since the scale last moved, and how many make it grow.
    int64_t growth_tracker = 0, growth_interval = 0;
    int64_t skipped_steps = 0;  // since the scaler was made
  };

  bool autocast = false;           // in this thread, on the model's device
  std::string dtype;               // of a region there that names none: "bf16"
  std::string policy;              // demi::global_policy(): "float32"
  std::optional<Scaling> scaling;  // none: the scaler is disabled
  /// Tensors of the model and optimizers that hold Inf or NaN.
  std::vector<monitor::NonFinite> nonfinite;
  std::string device;         // of the model's first parameter
  profile::MemoryUse memory;  // on that device
};

/// Waits for the device, and reads every tensor of the model and its optimizer.
DEMI_API Status status(const torch::nn::Module& model, torch::optim::Optimizer& optimizer,
                       const GradScaler& scaler);

/// Lines of text.
DEMI_API std::string to_string(const Status& status);
/// Writes these lines.
DEMI_API std::ostream& operator<<(std::ostream& out, const Status& status);

}  // namespace demi
