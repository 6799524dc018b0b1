#include "demi/train/metric.h"

#include <torch/types.h>

#include <algorithm>

#include "demi/core/error.h"

namespace demi::train {

Metric top_k(int64_t k) {
  if (k < 1)
    throw UsageError({.where = "train.top_k",
                      .what = "k is below 1",
                      .seen = std::to_string(k),
                      .accepted = "1 or more classes"});
  return {.name = "top" + std::to_string(k) + "_accuracy",
          .sum = [k](const at::Tensor& output, const at::Tensor& target) {
            const at::Tensor best = std::get<1>(output.topk(std::min(k, output.size(1)), 1));
            return best.eq(target.unsqueeze(1)).any(1).sum();
          }};
}

int64_t top_k_of(int64_t asked, int64_t classes) {
  if (asked == 0) return classes > 10 ? 5 : 0;
  if (asked < classes) return asked;
  throw UsageError(
      {.where = "train.top_k_of",
       .what = classes < 2 ? "there are no classes" : "every example would be among them",
       .seen = std::to_string(asked) + " of " + std::to_string(classes) + " classes",
       .accepted = classes < 2 ? "0" : "0 to " + std::to_string(classes - 1)});
}

Metric mean_absolute_error() {
  return {.name = "mean_absolute_error",
          .sum = [](const at::Tensor& output, const at::Tensor& target) {
            const at::Tensor error = (output.to(target.scalar_type()) - target).abs();
            return error.reshape({error.size(0), -1}).mean(1).sum();
          }};
}

}  // namespace demi::train
