#pragma once

#include "demi/attention/problem.h"

namespace demi::sdpa {

/// Whether the tiles can do it on this machine: bf16, AMX, head sizes that are even, no dropout, no
/// gradient of the mask.
bool fits_tiles(const Problem& problem, bool differentiates_mask);

/// Attention in bf16 on a processor with AMX, a head and some queries at a time: products of bf16
/// with FP32 sums by LibTorch's block products, the rest by demi's kernels. Weights are rounded to
/// bf16 before they meet v, as by blocks in 16 bits. `result` is written whole.
void forward_by_tiles(const Problem& problem, const Result& result);

/// The gradients of sum(out * of_out). The weights are computed again.
void backward_by_tiles(const Problem& problem, const Result& result, const at::Tensor& of_out,
                       Gradients& gradients);

}  // namespace demi::sdpa
