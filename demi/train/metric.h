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

/// Share of examples whose class is among the k highest logits (N, C); all of them where C <= k.
DEMI_API Metric top_k(int64_t k);

/// Mean absolute error over the elements of each example.
DEMI_API Metric mean_absolute_error();

}  // namespace demi::train
