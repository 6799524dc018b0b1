#pragma once

#include <torch/nn/module.h>
#include <torch/optim/optimizer.h>

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "demi/core/export.h"

namespace demi::monitor {

/// The role of a tensor in training.
enum class Role : std::uint8_t { parameter, gradient, buffer, moment };
/// The word for it in messages: "gradient".
DEMI_API std::string_view name_of(Role role);

/// A tensor that holds Inf or NaN.
struct NonFinite {
  Role role = Role::parameter;  // of the tensor
  std::string name;             // of the parameter or buffer in the model: "fc.weight"
  std::string moment;           // of Role::moment: "exp_avg_sq"
  /// Counts of its infinite and of its NaN elements.
  std::int64_t infinities = 0, nans = 0;
};

/// "parameter fc.weight", "gradient of fc.weight", "exp_avg_sq of fc.weight"
DEMI_API std::string name_of(const NonFinite& found);

/// "the gradient of fc.weight: 3 Inf, 1 NaN"
DEMI_API std::string to_string(const NonFinite& found);

/// The model's parameters, their gradients, its buffers, and the optimizers' moments of them that
/// hold Inf or NaN, in this order. Moments are those of demi's optimizers and of LibTorch's SGD,
/// Adam, AdamW, RMSprop and Adagrad. A parameter that the model does not have is called "?". Reads
/// each tensor once, and each device once.
DEMI_API std::vector<NonFinite> find_nonfinite(
    const torch::nn::Module& model, const std::vector<torch::optim::Optimizer*>& optimizers = {});
DEMI_API std::vector<NonFinite> find_nonfinite(const torch::nn::Module& model,
                                               torch::optim::Optimizer& optimizer);

}  // namespace demi::monitor
