#include "demi/train/loss.h"

#include <ATen/ops/binary_cross_entropy_with_logits.h>
#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/mse_loss.h>
#include <ATen/ops/nll_loss.h>
#include <torch/types.h>

#include <string>
#include <vector>

#include "demi/core/error.h"
#include "demi/core/nearest.h"

namespace demi::train {
namespace {

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
      return at::cross_entropy_loss(prediction, target, {}, at::Reduction::Mean, -100,
                                    label_smoothing);
    case Loss::cross_entropy_probabilities:
      return at::nll_loss(prediction.clamp(1e-7, 1).log(), target);
    case Loss::bce_with_logits:
      return at::binary_cross_entropy_with_logits(
          prediction, target.to(prediction.scalar_type()).view_as(prediction));
    case Loss::mse:
      return at::mse_loss(prediction, target.to(prediction.scalar_type()));
  }
  return {};
}

at::Tensor right_ones(Loss loss, const at::Tensor& output, const at::Tensor& target) {
  if (loss == Loss::mse) return {};
  const at::Tensor prediction = output.detach();
  if (loss == Loss::bce_with_logits)
    return prediction.gt(0).eq(target.gt(0.5).view_as(prediction)).reshape(-1);
  return prediction.argmax(1).eq(target);
}

at::Tensor LossFunction::operator()(const at::Tensor& output, const at::Tensor& target,
                                    double label_smoothing) const {
  if (function_) return function_(output, target);
  const at::Tensor loss = loss_of(loss_, output, target, label_smoothing);
  return weight_ == 1 ? loss : loss * weight_;
}

at::Tensor LossFunction::is_right(const at::Tensor& output, const at::Tensor& target) const {
  return has_accuracy() ? right_ones(loss_, output, target) : at::Tensor();
}

}  // namespace demi::train
