#include "demi/train/loss.h"

#include <ATen/ops/binary_cross_entropy_with_logits.h>
#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/full.h>
#include <ATen/ops/mse_loss.h>
#include <ATen/ops/nll_loss_nd.h>
#include <ATen/ops/where.h>
#include <fmt/format.h>
#include <torch/types.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <vector>

#include "demi/core/error.h"
#include "demi/core/nearest.h"

namespace demi::train {
namespace {

constexpr auto kLossOf = "train.loss_of";

std::string form_of(const char* name, const at::Tensor& tensor) {
  return c10::str(name, " ", tensor.sizes(), " ", c10::toString(tensor.scalar_type()));
}

std::vector<std::int64_t> without_ones(at::IntArrayRef sizes) {
  std::vector<std::int64_t> rest;
  std::copy_if(sizes.begin(), sizes.end(), std::back_inserter(rest),
               [](std::int64_t size) { return size != 1; });
  return rest;
}

bool is_soft(const at::Tensor& target) { return target.is_floating_point(); }

// Checks the arguments of a cross entropy. A shape that does not fit would be read as something
// else, or end in a message of LibTorch's that names no target.
void check_classes(Loss loss, const at::Tensor& output, const at::Tensor& target) {
  const bool takes_soft = loss == Loss::cross_entropy;
  const auto refuse = [&](const char* what, const std::string& accepted, const char* advice) {
    throw UsageError({.where = kLossOf,
                      .what = what,
                      .seen = form_of("output", output) + ", " + form_of("target", target),
                      .accepted = accepted,
                      .advice = advice});
  };
  if (output.dim() < 2 || output.size(1) < 2)
    refuse("cross entropy of fewer than two classes is 0 whatever the model says",
           "an output (N, C, ...) with a logit for each of two or more classes",
           "for one output a row use bce_with_logits (yes or no) or mse (a number)");
  std::vector<std::int64_t> of_classes = output.sizes().vec();
  of_classes.erase(of_classes.begin() + 1);
  const bool fits = is_soft(target)
                        ? takes_soft && target.sizes() == output.sizes()
                        : target.sizes() == at::IntArrayRef(of_classes) && !target.is_complex();
  if (fits) return;
  std::string accepted = c10::str("classes ", at::IntArrayRef(of_classes), " of int64");
  if (takes_soft) accepted += c10::str(", or probabilities ", output.sizes());
  refuse("the target does not fit the output of a cross entropy", accepted, "");
}

at::Tensor as_classes(const at::Tensor& target) {
  return is_soft(target) ? target : target.to(c10::kLong);
}

void require_target(const at::Tensor& target, std::string_view where) {
  if (!target.defined())
    throw UsageError({.where = where,
                      .what = "the batch has no target",
                      .accepted = "a loader whose batches have one",
                      .advice = "a model that learns without targets computes its own losses: "
                                "TrainerOptions::losses"});
}

}  // namespace

at::Tensor is_counted(const at::Tensor& classes) {
  return classes.to(c10::kLong).ne(kIgnoredClass);
}

at::Tensor at_least_fp32(const at::Tensor& output) {
  const auto dtype = output.defined() ? output.scalar_type() : c10::kFloat;
  return dtype == c10::kHalf || dtype == c10::kBFloat16 ? output.to(c10::kFloat) : output;
}

at::Tensor target_like(const at::Tensor& output, const at::Tensor& target, std::string_view where) {
  require_target(target, where);
  if (target.sizes() == output.sizes()) return target;
  if (without_ones(target.sizes()) == without_ones(output.sizes()))
    return target.reshape(output.sizes());
  throw UsageError({.where = where,
                    .what = "output and target differ in shape",
                    .seen = form_of("output", output) + ", " + form_of("target", target),
                    .accepted = "one shape, but for dimensions of size 1",
                    .advice = "broadcasting would compare each row with all others"});
}

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
  require_target(target, kLossOf);
  const at::Tensor prediction =
      output.scalar_type() == c10::kDouble ? output : output.to(c10::kFloat);
  switch (loss) {
    case Loss::cross_entropy:
      check_classes(loss, output, target);
      return at::cross_entropy_loss(prediction, as_classes(target), {}, at::Reduction::Mean,
                                    kIgnoredClass, label_smoothing);
    case Loss::cross_entropy_probabilities:
      check_classes(loss, output, target);
      return at::nll_loss_nd(prediction.clamp(1e-7, 1).log(), as_classes(target), {},
                             at::Reduction::Mean, kIgnoredClass);
    case Loss::bce_with_logits:
      return at::binary_cross_entropy_with_logits(
          prediction, target_like(output, target, kLossOf).to(prediction.scalar_type()));
    case Loss::mse:
      return at::mse_loss(prediction,
                          target_like(output, target, kLossOf).to(prediction.scalar_type()));
  }
  return {};
}

at::Tensor right_ones(Loss loss, const at::Tensor& output, const at::Tensor& target) {
  if (loss == Loss::mse) return {};
  const at::Tensor prediction = output.detach();
  if (loss == Loss::bce_with_logits)
    return prediction.gt(0).eq(target_like(prediction, target, kLossOf).gt(0.5));
  return prediction.argmax(1).eq(is_soft(target) ? target.argmax(1) : target);
}

at::Tensor answers_in(Loss loss, const at::Tensor& output, const at::Tensor& target) {
  if (loss == Loss::mse) return {};
  if (loss != Loss::bce_with_logits && !is_soft(target)) return is_counted(target).sum();
  const bool has_class_dimension = loss != Loss::bce_with_logits;
  const std::int64_t all = has_class_dimension ? target.numel() / target.size(1) : target.numel();
  return at::full({}, all, output.options().dtype(c10::kLong).requires_grad(false));
}

at::Tensor sum_over(const at::Tensor& mean, const at::Tensor& answers, std::int64_t examples) {
  if (!answers.defined()) return mean * static_cast<double>(examples);
  return at::where(answers.gt(0), mean * answers, 0);
}

LossFunction::LossFunction(Loss loss, double weight) : loss_(loss), weight_(weight) {
  if (!std::isfinite(weight))
    throw UsageError({.where = "train.LossFunction",
                      .what = "the weight of a loss is no number",
                      .seen = std::to_string(weight),
                      .accepted = "a finite number"});
}

void LossFunction::require_function() const {
  if (!function_)
    throw UsageError({.where = "train.LossFunction",
                      .what = "the function is empty",
                      .accepted = "a function of output and target, or the name of a loss"});
}

at::Tensor LossFunction::operator()(const at::Tensor& output, const at::Tensor& target,
                                    double label_smoothing) const {
  if (function_) return function_(at_least_fp32(output), target);
  const at::Tensor loss = loss_of(loss_, output, target, label_smoothing);
  return weight_ == 1 ? loss : loss * weight_;
}

at::Tensor LossFunction::is_right(const at::Tensor& output, const at::Tensor& target) const {
  return has_accuracy() ? right_ones(loss_, output, target) : at::Tensor();
}

at::Tensor LossFunction::answers(const at::Tensor& output, const at::Tensor& target) const {
  return has_accuracy() ? answers_in(loss_, output, target) : at::Tensor();
}

LossFunction::Classes LossFunction::classes(const at::Tensor& output,
                                            const at::Tensor& target) const {
  if (loss_ == Loss::bce_with_logits) return {target.gt(0.5).to(c10::kLong), 2};
  return {is_soft(target) ? target.argmax(1) : target.to(c10::kLong), output.size(1)};
}

double LossFunction::share_that_counts(const at::Tensor& target) const {
  const bool of_classes =
      !function_ && (loss_ == Loss::cross_entropy || loss_ == Loss::cross_entropy_probabilities);
  if (!of_classes || !at::isIntegralType(target.scalar_type(), /*includeBool=*/false) ||
      target.numel() == 0)
    return 1;
  const auto counted = is_counted(target).sum().item<std::int64_t>();
  return static_cast<double>(counted) / static_cast<double>(target.numel());
}

std::string LossFunction::text() const {
  if (function_) return "a function";
  const char* name = loss_ == Loss::cross_entropy                 ? "cross_entropy"
                     : loss_ == Loss::cross_entropy_probabilities ? "cross_entropy_probabilities"
                     : loss_ == Loss::bce_with_logits             ? "bce_with_logits"
                                                                  : "mse";
  return fmt::format("{}, weight {}", name, weight_);
}

}  // namespace demi::train
