#pragma once

#include "demi/attention/problem.h"

namespace demi::sdpa {

/// Attention some queries at a time, each with all keys that it sees, on a CPU. Products of
/// operands of dtype `products`; softmax and sums in FP32, in FP64 for FP64. `out` (N, H, T, F) of
/// any strides is written whole.
void forward_by_blocks(const Problem& problem, c10::ScalarType products, const at::Tensor& out);

/// The gradients of sum(out * of_out). The weights are computed again.
void backward_by_blocks(const Problem& problem, c10::ScalarType products, const at::Tensor& of_out,
                        Gradients& gradients);

}  // namespace demi::sdpa
