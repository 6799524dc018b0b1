#pragma once

#include <ATen/core/Tensor.h>

#include "demi/batch_norm/batch_norm.h"
#include "demi/batch_norm/engine.h"

namespace demi::batch_norm {

/// The tensors that backward keeps of a call, and the call's numbers.
struct Saved {
  at::Tensor input, weight, bias;
  at::Tensor channels;  // kernels::ChannelStatistics::channels
  at::Tensor output, chosen;
  bool training, relu, has_add;
  double eps;
  MaxPooling pool;
};

/// Gradients of input, weight, bias, and what was added.
struct Gradients {
  at::Tensor input, weight, bias, add;
};

/// The gradients by the kernels.
Gradients gradients_by_kernels(const Saved& saved, const at::Tensor& gradient,
                               const Engine& engine);
/// The gradients by LibTorch's operators, which autograd differentiates again in grad mode. Given
/// statistics are constants.
Gradients gradients_by_operators(const Saved& saved, const at::Tensor& gradient);

}  // namespace demi::batch_norm
