#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <string>

#include "demi/core/export.h"

namespace demi::train {

/// A figure that is computed beside the loss, of outputs in FP32 at least. `sum` returns the sum
/// over the examples of a batch, a scalar on the output's device, and must not synchronise.
/// Reported is the mean over all examples.
struct Metric {
  std::string name;  // as it is reported
  std::function<at::Tensor(const at::Tensor& output, const at::Tensor& target)> sum;
  /// Returns, in the same way, how many `sum` is over, if that is not the number of examples:
  /// Reported is then the sum of all sums over the sum of all counts.
  std::function<at::Tensor(const at::Tensor& output, const at::Tensor& target)> count = nullptr;
};

/// "top5_accuracy" for k = 5: the share of answers (N, ...) whose class is among the k highest
/// logits (N, C, ...), without ignored ones; 1 if C <= k.
DEMI_API Metric top_k(int64_t k);

/// The k of a classification's top-k accuracy: `asked`; if that is 0, 5 with more than 10 classes
/// and otherwise 0 (none). Throws UsageError if k is not below the number of classes, since every
/// example would then be right, and if there are no classes.
DEMI_API int64_t top_k_of(int64_t asked, int64_t classes);

/// "mean_absolute_error": the mean over the elements of each example.
DEMI_API Metric mean_absolute_error();

}  // namespace demi::train
