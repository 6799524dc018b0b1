#pragma once

#include <ATen/ATen.h>
#include <torch/nn/modules/linear.h>

namespace demi::nn {

/// What torch.nn.Linear computes in Python: one operation, its bias included. LibTorch's module
/// adds the bias of three dimensions in a pass of its own.
inline at::Tensor linear(const torch::nn::Linear& layer, const at::Tensor& x) {
  return at::linear(x, layer->weight, layer->bias);
}

}  // namespace demi::nn
