#pragma once

#include "demi/attention/problem.h"

namespace demi::sdpa {

/// Whether LibTorch's fused kernel for CPUs does it: no dropout, one head size, no gradient of the
/// mask, causal from the first key on and with an ordinary scale.
bool is_fused(const Problem& problem, bool differentiates_mask);

/// Runs that kernel, on operands cast to FP32; FP32 and FP64 operands are not cast.
Result forward_fused(const Problem& problem);

void backward_fused(const Problem& problem, const Result& result, const at::Tensor& of_out,
                    Gradients& gradients);

}  // namespace demi::sdpa
