#pragma once

#include <ATen/ATen.h>
#include <torch/nn/modules/linear.h>

#include "demi/autocast/op_table.h"
#include "demi/autocast/region_rules.h"

namespace demi::nn {

/// What torch.nn.Linear computes in Python: one operation, its bias included. LibTorch's module
/// adds the bias of three dimensions in a pass of its own.
inline at::Tensor linear(const torch::nn::Linear& layer, const at::Tensor& x) {
  return at::linear(x, layer->weight, layer->bias);
}

/// The dtype that linear() casts x to here.
inline at::ScalarType dtype_of_input(const torch::nn::Linear& layer, const at::Tensor& x) {
  static const int op = op_number("linear");
  return dtype_in_region(op, x, layer->weight);
}

}  // namespace demi::nn
