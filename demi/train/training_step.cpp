#include "demi/train/training_step.h"

#include <torch/types.h>

#include <functional>
#include <optional>
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

double share_of(const Setup& setup, const data::Batch& batch) {
  if (!setup.ranks.are_several() || setup.options.losses) return 1;
  return setup.options.loss.share_that_counts(batch.target);
}

BatchInTraining::BatchInTraining(const Setup& setup, loop::Step& step, const data::Batch& batch,
                                 double share)
    : setup_(setup),
      step_(step),
      batch_(batch),
      share_(share),
      is_own_(setup.options.gradient_penalty == 0 && computes(setup.network, setup.options.loss)) {}

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

loop::Sums BatchInTraining::sums(const std::vector<at::Tensor>& losses, int64_t examples) {
  for (const at::Tensor& loss : losses) add_up(sums_.loss, loss);
  sums_.examples = examples;
  for (at::Tensor* mean : {&sums_.loss, &sums_.judged})
    if (mean->defined()) *mean = sum_over(*mean, sums_.answers, sums_.examples);
  return std::move(sums_);
}

// The tensors are handed over, and are fixed ones in a recording; `make` makes the batch of them.
static loop::Sums train_on_given(const Setup& setup, loop::Step& step,
                                 const loop::Step::Tensors& tensors, int64_t examples,
                                 const std::function<data::Batch(const loop::Step::Tensors&)>& make,
                                 const loop::MicroBatch& how) {
  using Tensors = loop::Step::Tensors;
  data::Batch given;
  std::optional<BatchInTraining> of_given;
  const auto forward = [&](const Tensors& in) {
    given = make(in);
    return of_given.emplace(setup, step, given, how.weight).forward();
  };
  const auto results = [&](const at::Tensor& output, const Tensors&) {
    Tensors all{of_given->loss(output)};
    for (const at::Tensor& part : of_given->parts()) all.push_back(part);
    return all;
  };
  Tensors values = step.batch(tensors, {}, forward, results, how);
  const data::Batch none;
  BatchInTraining one(setup, step, none, how.weight);
  one.set_parts({values[1], values[2], values[3]});
  return one.sums({values[0]}, examples);
}

loop::Sums train_on(const Setup& setup, loop::Step& step, const data::Batch& batch,
                    const loop::MicroBatch& how) {
  const auto is_elsewhere = [&](const at::Tensor& one) {  // lengths stay where they are packed
    return one.defined() && one.device() != batch.input.device();
  };
  const int64_t examples = data::examples_of(batch);
  BatchInTraining one(setup, step, batch, how.weight);
  if (setup.options.losses)
    return one.sums(step.batch([&] { return one.losses(); }, how), examples);
  if (is_elsewhere(batch.target) || is_elsewhere(batch.lengths))
    return one.sums({step.batch([&] { return one.forward(); },
                                [&](const at::Tensor& output) { return one.loss(output); }, how)},
                    examples);
  return train_on_given(
      setup, step, {batch.input, batch.target, batch.lengths}, examples,
      [](const loop::Step::Tensors& in) {
        return data::Batch{in[0], in[1], in[2]};
      },
      how);
}

loop::Sums train_on(const Setup& setup, loop::Step& step, const data::Loader& loader,
                    const at::Tensor& choice, const loop::MicroBatch& how) {
  return train_on_given(
      setup, step, {choice}, choice.size(0),
      [&](const loop::Step::Tensors& in) { return loader.chosen(in[0]); }, how);
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
