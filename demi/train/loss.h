#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string_view>

#include "demi/core/export.h"

namespace demi::train {

enum class Loss {
  cross_entropy,    // logits (N, C), classes (N) int64
  bce_with_logits,  // logits (N) or (N, 1), labels 0 or 1 of the same shape
  mse,              // any shape, equal on both sides
};

/// "cross-entropy", "bce", "mse". Throws UsageError with the nearest right name.
DEMI_API Loss parse_loss(std::string_view name);

/// Mean over the batch, FP32 (FP64 for FP64 outputs), whatever the output's dtype: Micikevicius et
/// al. 2017, section 3.3, "prediction to FP32". `label_smoothing` in [0, 1), cross entropy only.
DEMI_API at::Tensor loss_of(Loss loss, const at::Tensor& output, const at::Tensor& target,
                            double label_smoothing = 0);

/// How many examples of the batch are right, int64 scalar on the output's device; undefined for
/// mse. Does not synchronise.
DEMI_API at::Tensor correct_count(Loss loss, const at::Tensor& output, const at::Tensor& target);

}  // namespace demi::train
