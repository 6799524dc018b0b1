#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <string>

#include "demi/core/export.h"

namespace demi::train {

/// A figure beside the loss. `sum` gives the sum over the examples of a batch, a scalar on the
/// output's device, and must not synchronise; what is reported is the mean over all examples.
struct Metric {
  std::string name;
  std::function<at::Tensor(const at::Tensor& output, const at::Tensor& target)> sum;
};

/// "top5_accuracy": share of examples whose class (N) is among the k highest logits (N, C); all of
/// them where C <= k.
DEMI_API Metric top_k(int64_t k);

/// The k of a classification's top-k accuracy: `asked`, or where that is 0, 5 with more than 10
/// classes and 0, none, with fewer. Throws UsageError where every example would be right, k not
/// below the classes, and where there are no classes.
DEMI_API int64_t top_k_of(int64_t asked, int64_t classes);

/// Mean absolute error over the elements of each example.
DEMI_API Metric mean_absolute_error();

}  // namespace demi::train
