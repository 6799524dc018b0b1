#pragma once

#include "demi/attention/problem.h"

namespace demi::sdpa {

/// Whether LibTorch's fused kernel for CPUs does it: no dropout, one head size, no gradient of the
/// mask, causal from the first key on.
bool is_fused(const Problem& problem, bool differentiates_mask);

struct FusedResult {
  at::Tensor out;          // (N, H, T, E) in q's dtype
  at::Tensor log_sum_exp;  // for backward
};

/// On operands cast to `dtype`.
FusedResult forward_fused(const Problem& problem, c10::ScalarType dtype);

void backward_fused(const Problem& problem, c10::ScalarType dtype, const at::Tensor& out,
                    const at::Tensor& log_sum_exp, const at::Tensor& of_out, Gradients& gradients);

}  // namespace demi::sdpa
