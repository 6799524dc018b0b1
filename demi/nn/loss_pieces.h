#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "demi/core/export.h"
#include "demi/kernels/cuda_kernels.h"

// The logits of a head and what cross entropy makes of them, for some rows at a time.
namespace demi::nn {

struct HeadAndTargets {
  at::Tensor input;         // (N, D)
  at::Tensor weight;        // (C, D)
  at::Tensor bias;          // (C), or undefined
  at::Tensor target;        // (N): 0 where it does not count; in range, but with kernels
  at::Tensor counts;        // (N), bool
  at::Tensor class_weight;  // (C) in the dtype of sums, or undefined
  double smoothing = 0;
  double softcap = 0;                      // c > 0: c tanh(logit / c) in place of the logits
  c10::ScalarType products = c10::kFloat;  // the operands' dtype
  c10::ScalarType sums = c10::kFloat;      // of logits, losses and gradients
  std::int64_t rows = 1;                   // of a piece
  /// What makes losses and gradients of logits in one launch, with sums in FP32; null: tensor
  /// operations do.
  const kernels::CudaKernels* kernels = nullptr;
};

struct WantedGradients {
  bool input = false, weight = false, bias = false;
  bool any() const { return input || weight || bias; }
};

struct LossPieces {
  at::Tensor losses;               // (N)
  at::Tensor right;                // (N) bool: the largest logit is the target's, and it counts
  at::Tensor input, weight, bias;  // gradients, undefined if not wanted
};

/// The factor of each row's loss: the weight of its class, 0 where the target does not count. (N)
at::Tensor target_weights(const HeadAndTargets& of);

/// Losses, and the gradients of sum(losses * row_scale). `row_scale` (N): 0 where the target does
/// not count. `right` is defined if asked for.
DEMI_API LossPieces loss_pieces(const HeadAndTargets& of, const at::Tensor& row_scale,
                                WantedGradients wanted, bool right = false);

}  // namespace demi::nn
