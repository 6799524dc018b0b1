#pragma once

#include <ATen/core/Tensor.h>
#include <torch/optim/optimizer.h>

#include <functional>

namespace demi::checkpoint {

/// What torch::save writes of an optimizer, uint8, (bytes), on the CPU. Throws UsageError for a
/// state that LibTorch cannot save.
at::Tensor archive_of(const torch::optim::Optimizer& optimizer);

/// Checks such an archive against the optimizer: groups, numbers of parameters, names of options,
/// shapes of moments. The function that it returns loads it, to the device of the optimizer's first
/// parameter. LibTorch's own load checks less, and throws in the middle. Throws UsageError for an
/// archive that does not fit, and changes nothing.
std::function<void()> prepare_archive(const at::Tensor& archive,
                                      torch::optim::Optimizer& optimizer);

}  // namespace demi::checkpoint
