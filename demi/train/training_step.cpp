#include "demi/train/training_step.h"

#include <torch/types.h>

#include <unordered_set>
#include <utility>

#include "demi/autocast/autocast.h"
#include "demi/tensor/module_tensors.h"
#include "demi/train/own_loss.h"

namespace demi::train {
namespace {

void add_up(at::Tensor& sum, const at::Tensor& more) {
  if (more.defined()) sum = sum.defined() ? sum + more : more;
}

// weight x |d loss / d parameters|. Undefined if the loss depends on none of them.
at::Tensor penalty_of(const Setup& setup, loop::Step& step, const at::Tensor& loss) {
  std::vector<at::Tensor> parameters =
      tensor::without_names(tensor::parameters_once(*setup.network.module));
  std::erase_if(parameters, [](const at::Tensor& one) { return !one.requires_grad(); });
  at::Tensor squares;
  for (const at::Tensor& gradient : step.gradients(loss, parameters))
    if (gradient.defined()) add_up(squares, gradient.square().sum());
  return squares.defined() ? setup.options.gradient_penalty * squares.sqrt() : at::Tensor();
}

// The loss of this rank's part of a batch. With several ranks its mean counts by the targets that
// are not ignored, since the parts of all ranks are one batch; the factor is known after the step's
// totals. The mean of no targets is NaN, and counts as 0.
at::Tensor loss_of(const TrainerOptions& options, double share, const at::Tensor& output,
                   const at::Tensor& target) {
  if (share == 0) return (output * 0).sum().to(c10::kFloat);
  return options.loss(output, target, options.label_smoothing);
}

}  // namespace

std::vector<loop::NamedInput> inputs_of(const data::Batch& batch) {
  std::vector<loop::NamedInput> inputs;
  const auto add = [&](const char* name, const at::Tensor& tensor) {
    if (tensor.defined()) inputs.emplace_back(name, tensor);
  };
  add("input", batch.input);
  add("target", batch.target);
  add("lengths", batch.lengths);
  return inputs;
}

BatchInTraining::BatchInTraining(const Setup& setup, loop::Step& step, const data::Batch& batch)
    : setup_(setup),
      step_(step),
      batch_(batch),
      is_own_(setup.options.gradient_penalty == 0 && computes(setup.network, setup.options.loss)) {
  if (setup.ranks.are_several() && !setup.options.losses)
    share_ = setup.options.loss.share_that_counts(batch.target);
}

data::Batch BatchInTraining::input() const {
  data::Batch result = batch_;
  result.input = step_.input(batch_.input);
  return result;
}

at::Tensor BatchInTraining::forward() {
  if (!is_own_) return setup_.network.forward(input());
  const TrainerOptions& options = setup_.options;
  OwnLoss own = own_loss(setup_.network, options.loss, input(), options.label_smoothing);
  right_ = std::move(own.right);
  return own.mean;
}

at::Tensor BatchInTraining::loss(const at::Tensor& output) {
  const LossFunction& function = setup_.options.loss;
  at::Tensor loss = is_own_ ? output : loss_of(setup_.options, share_, output, batch_.target);
  if (!std::exchange(is_seen_, true)) {
    const at::Tensor right = is_own_ ? right_ : function.is_right(output, batch_.target);
    if (right.defined()) sums_.correct = right.sum();
    sums_.answers = function.answers(output, batch_.target);
    judge({loss});
  }
  penalise(loss);
  return loss;
}

std::vector<at::Tensor> BatchInTraining::losses() {
  std::vector<at::Tensor> losses = setup_.options.losses(setup_.network, input());
  if (setup_.options.gradient_penalty == 0) return losses;
  if (!std::exchange(is_seen_, true)) judge(losses);
  const Autocast outside(setup_.options.device.type(), AutocastOptions{.enabled = false});
  for (at::Tensor& loss : losses) penalise(loss);
  return losses;
}

void BatchInTraining::judge(const std::vector<at::Tensor>& losses) {
  if (setup_.options.gradient_penalty == 0) return;
  for (const at::Tensor& loss : losses)
    if (loss.defined()) add_up(sums_.judged, loss.detach().reshape({}));
}

void BatchInTraining::penalise(at::Tensor& loss) const {
  if (setup_.options.gradient_penalty == 0) return;
  const at::Tensor penalty = penalty_of(setup_, step_, loss);
  if (penalty.defined()) loss = loss + penalty;
}

loop::Sums BatchInTraining::sums(const std::vector<at::Tensor>& losses) {
  for (const at::Tensor& loss : losses) add_up(sums_.loss, loss);
  sums_.examples = data::examples_of(batch_);
  for (at::Tensor* mean : {&sums_.loss, &sums_.judged})
    if (mean->defined()) *mean = sum_over(*mean, sums_.answers, sums_.examples);
  return std::move(sums_);
}

void scale_gradients(const Setup& setup, double factor) {
  const at::NoGradGuard no_grad;
  std::unordered_set<const at::TensorImpl*> seen;
  for (const auto& optimizer : setup.options.optimizers)
    for (const auto& group : optimizer->param_groups())
      for (const at::Tensor& p : group.params())
        if (p.grad().defined() && seen.insert(p.unsafeGetTensorImpl()).second)
          p.mutable_grad().mul_(factor);
}

}  // namespace demi::train
