#pragma once

#include <torch/optim/optimizer.h>

#include <functional>
#include <string>

#include "demi/checkpoint/checkpoint.h"

namespace demi::checkpoint {

/// Writes the optimizer's state to `to` under names that begin with `part`: "optimizer",
/// "optimizer.1". Throws UsageError for an optimizer whose state LibTorch cannot save.
void capture_optimizer(const torch::optim::Optimizer& optimizer, const std::string& part,
                       Checkpoint& to);

/// Whether the checkpoint holds the state of an optimizer under this name.
bool has_optimizer(const Checkpoint& checkpoint, const std::string& part);

/// Checks the state, and takes its tensors out of the checkpoint. The function that it returns puts
/// it into the optimizer. Throws UsageError for a state that does not fit, and then the optimizer
/// is not changed.
std::function<void()> prepare_optimizer(Checkpoint& checkpoint, const std::string& part,
                                        torch::optim::Optimizer& optimizer);

}  // namespace demi::checkpoint
