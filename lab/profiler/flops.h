#pragma once

#include "demi/core/export.h"
#include "lab/profiler/event.h"

namespace demi::profiler {

/// Floating point operations of a product, convolution, attention or recurrent layer, from the
/// shapes of its arguments; a multiplication and its addition are two. 0 for all other ops, and
/// where shapes were not recorded.
///
///     (m, k) by (k, n)                                      2 m k n       mm, addmm, linear, mv, demi.product
///     batches of them                                       2 b m k n     bmm, baddbmm
///     convolution to (N, K, spatial...) from C channels     2 N K C / groups x kernel x spatial
///     its gradients of input and of weight                  as much for each that is asked for
///     attention of H heads, T queries, S keys               2 N H T S (E + F)
///     its backward                                          twice as much
///     recurrent layer of G gates, I inputs, R outputs       2 N T G H (I + R); an LSTM: 8 H (I + H)
///     its backward                                          twice as much
///
/// Attention counts as in PyTorch's torch.utils.flop_counter and in 12 L T d a token (Chowdhery et
/// al., 2022, "PaLM", appendix B): each query by each key, with or without a mask. Products that a
/// fused kernel recomputes in backward do not count: the figure is the same for every kernel.
DEMI_API double flops_of(const Event& event);

/// Whether the op's own figure counts, and not those of the ops that it calls: of demi's kernels,
/// whose blocks of attention leave out what a causal mask hides.
DEMI_API bool counts_for_its_calls(const Event& event);

}  // namespace demi::profiler
