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

/// In FP32 on casts, in FP64 for FP64.
FusedResult forward_fused(const Problem& problem);

void backward_fused(const Problem& problem, const at::Tensor& out, const at::Tensor& log_sum_exp,
                    const at::Tensor& of_out, Gradients& gradients);

}  // namespace demi::sdpa
