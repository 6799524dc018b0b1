#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>

#include "demi/core/export.h"

namespace demi {

/// How the losses of the rows become the result: as they are, their mean, their sum.
enum class Reduction { none, mean, sum };

/// The keyword arguments of torch.nn.functional.linear_cross_entropy, under their names.
struct LinearCrossEntropyOptions {
  at::Tensor linear_bias = {};            ///< (C), added to the logits.
  at::Tensor weight = {};                 ///< (C), a factor for each class.
  Reduction reduction = Reduction::mean;  ///< mean: over the targets that count, by their weights.
  std::int64_t ignore_index = -100;       ///< Targets of this value do not count.
  double label_smoothing = 0;             ///< 0 to 1.
  double softcap = 0;                     ///< c > 0: c tanh(logit / c) in place of each logit.
  /// Rows of logits held at once. Default: a fourteenth of the rows, half of that with softcap; in
  /// 16 bits on a GPU an eighth; more while that holds less than 1 MiB, on a GPU 64 MiB.
  std::optional<std::int64_t> batch_chunk_size = {};
};

/// cross_entropy(linear(input, linear_weight, linear_bias), target), piece by piece: the logits of
/// all rows are never held at once. The gradients are made in forward, in FP32, and are multiplied
/// by the loss scale in backward, so they do not underflow in fp16.
///
///     auto loss = demi::linear_cross_entropy(hidden, head->weight, target);
///
/// `input` (*, D), `linear_weight` (C, D), `target` (*), int64: a class from 0 to C - 1, or
/// ignore_index. In a region the dtype is the one that the region gives linear. Products run in
/// bf16 where the device has instructions for it (on a CPU from D = 16 on), and in fp16 by demi's
/// kernels on a GPU, which scale gradients by the greatest one there can be; otherwise they run in
/// FP32 on the numbers as given. Returns FP32 in a region, else input's dtype: a scalar, or one
/// loss for each target.
///
/// Beyond inputs, results, gradients (of a 16-bit input in FP32, too), a region's copy of the
/// weight and 64 bytes a target it holds at most 1 MiB (on a GPU 64 MiB), or a tenth of the bytes
/// of the FP32 logits if that is more, where there are 64 rows or more, many more classes than D,
/// and batch_chunk_size is not given; FP32 on a CPU also two sums of the gradient of a piece's
/// input for each thread; a GPU in 16 bits a copy of the weight where C is no multiple of 64.
/// Reduction::none computes the logits twice. backward() may run several times on a retained graph;
/// gradients of gradients throw UsageError. Throws UsageError for arguments that do not fit, and on
/// a CPU for a target out of range; on a GPU its loss and gradients are NaN, or LibTorch's
/// assertion ends the process' work there (with weight, in FP64, without demi's kernels). With no
/// target that counts the mean is NaN and the gradients are 0.
DEMI_API at::Tensor linear_cross_entropy(const at::Tensor& input, const at::Tensor& linear_weight,
                                         const at::Tensor& target,
                                         const LinearCrossEntropyOptions& options = {});

/// A loss, and how many answers were right.
struct LossAndRight {
  at::Tensor loss;   // as linear_cross_entropy gives it
  at::Tensor right;  ///< bool, the target's shape: it counts, and its logit is the largest.
};

/// linear_cross_entropy, and which targets a prediction by the largest logit meets.
DEMI_API LossAndRight linear_cross_entropy_and_right(const at::Tensor& input,
                                                     const at::Tensor& linear_weight,
                                                     const at::Tensor& target,
                                                     const LinearCrossEntropyOptions& options = {});

}  // namespace demi
