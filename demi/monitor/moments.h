#pragma once

#include <ATen/core/Tensor.h>
#include <torch/optim/optimizer.h>

#include <string>
#include <vector>

namespace demi::monitor {

/// A tensor of an optimizer's state that belongs to one parameter.
struct Moment {
  std::string name;  // LibTorch's: "exp_avg_sq"
  at::Tensor parameter, value;
};

/// The moments of demi's optimizers and of LibTorch's SGD, Adam, AdamW, RMSprop and Adagrad.
/// Moments that no step has made yet are missing. None for other optimizers, LBFGS among them.
std::vector<Moment> moments_of(torch::optim::Optimizer& optimizer);

}  // namespace demi::monitor
