#pragma once

#include <ATen/core/Tensor.h>
#include <torch/optim/optimizer.h>

#include <map>
#include <string>

#include "demi/core/export.h"

namespace torch::nn {
class Module;
}

namespace demi::optim {

/// The number that a demi optimizer updates, in fp32 (fp64 for an fp64 parameter): the master of a
/// 16-bit parameter, or its halves joined (WeightMode), a copy. Undefined for a parameter that has
/// no state there. For a parameter that was converted since the last step (Module::to), the number
/// that the next step starts from.
DEMI_API at::Tensor fp32_weight(const torch::optim::Optimizer& optimizer,
                                const at::Tensor& parameter);

/// A module's parameters and buffers by name, for a file: 16-bit parameters that the optimizer has
/// taken a step with are the fp32 numbers that are trained, not their rounding; the rest is
/// unchanged. Tensors are detached; those of the module itself are not copied.
DEMI_API std::map<std::string, at::Tensor> export_fp32(const torch::nn::Module& module,
                                                       const torch::optim::Optimizer& optimizer);

}  // namespace demi::optim
