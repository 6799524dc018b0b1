#pragma once

#include <torch/optim/optimizer.h>

#include <optional>
#include <string>

#include "demi/autocast/op_policy.h"
#include "demi/scaler/scale_rule.h"
#include "demi/train/setup.h"

namespace demi::train {

/// Texts that ranks compare before the first step, a line an option: ranks whose lines differ would
/// train different weights.
std::string agreement_on(const GradScalerOptions& options);
std::string agreement_on(const std::optional<OpPolicy>& policy);
/// Class, parameter groups and their options. `name`: "optimizer 0". Options of LibTorch's classes
/// other than the learning rate are one line with a checksum.
std::string agreement_on(const torch::optim::Optimizer& optimizer, const std::string& name);
/// Options, precision, optimizers and scaler of a training.
std::string agreement_on(const Setup& setup);

}  // namespace demi::train
