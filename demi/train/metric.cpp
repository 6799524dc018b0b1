#include "demi/train/metric.h"

#include <torch/types.h>

#include <algorithm>

#include "demi/core/error.h"
#include "demi/train/loss.h"

namespace demi::train {

Metric top_k(int64_t k) {
  if (k < 1)
    throw UsageError({.where = "train.top_k",
                      .what = "k is below 1",
                      .seen = std::to_string(k),
                      .accepted = "1 or more classes"});
  const auto classes_in = [](const at::Tensor& target) {
    return target.is_floating_point() ? target.argmax(1) : target;  // of probabilities (N, C, ...)
  };
  return {.name = "top" + std::to_string(k) + "_accuracy",
          .sum =
              [k, classes_in](const at::Tensor& output, const at::Tensor& target) {
                const at::Tensor best = std::get<1>(output.topk(std::min(k, output.size(1)), 1));
                return best.eq(classes_in(target).unsqueeze(1)).any(1).sum();
              },
          .count = [classes_in](
                       const at::Tensor&,
                       const at::Tensor& target) { return is_counted(classes_in(target)).sum(); }};
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
            const auto in = output.scalar_type() == c10::kDouble ? c10::kDouble : c10::kFloat;
            const at::Tensor wanted = target_like(output, target, "train.mean_absolute_error");
            const at::Tensor error = (output.to(in) - wanted.to(in)).abs();
            return error.reshape({error.size(0), -1}).mean(1).sum();
          }};
}

}  // namespace demi::train
