#include "demi/train/loss.h"

#include <torch/nn/functional/loss.h>

#include <string>
#include <vector>

#include "demi/core/error.h"
#include "demi/core/nearest.h"

namespace demi::train {
namespace {

namespace F = torch::nn::functional;

at::Tensor at_least_fp32(const at::Tensor& output) {
  return output.scalar_type() == c10::kDouble ? output : output.to(c10::kFloat);
}

}  // namespace

Loss parse_loss(std::string_view name) {
  if (name == "cross-entropy") return Loss::cross_entropy;
  if (name == "bce") return Loss::bce_with_logits;
  if (name == "mse") return Loss::mse;
  const std::vector<std::string> known{"cross-entropy", "bce", "mse"};
  throw UsageError({.where = "train.parse_loss",
                    .what = "no such loss",
                    .seen = name,
                    .advice = did_you_mean(name, known)});
}

at::Tensor loss_of(Loss loss, const at::Tensor& output, const at::Tensor& target,
                   double label_smoothing) {
  const at::Tensor prediction = at_least_fp32(output);
  switch (loss) {
    case Loss::cross_entropy:
      return F::cross_entropy(prediction, target,
                              F::CrossEntropyFuncOptions().label_smoothing(label_smoothing));
    case Loss::bce_with_logits:
      return F::binary_cross_entropy_with_logits(
          prediction, target.to(prediction.scalar_type()).view_as(prediction));
    case Loss::mse:
      return F::mse_loss(prediction, target.to(prediction.scalar_type()));
  }
  return {};
}

at::Tensor correct_count(Loss loss, const at::Tensor& output, const at::Tensor& target) {
  if (loss == Loss::mse) return {};
  const at::Tensor prediction = output.detach();
  if (loss == Loss::cross_entropy) return prediction.argmax(1).eq(target).sum();
  return prediction.gt(0).eq(target.gt(0.5).view_as(prediction)).sum();
}

}  // namespace demi::train
