#include "demi/train/training_step.h"

#include <torch/types.h>

#include <unordered_set>
#include <utility>

#include "demi/autocast/autocast.h"
#include "demi/tensor/module_tensors.h"

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

// With several ranks a mean counts as much as it has targets that are not ignored: those of all
// ranks are one batch. The factor that this lacks is known after the step's totals. The mean of
// nothing is NaN, and counts for nothing.
at::Tensor loss_of(const TrainerOptions& options, double share, const at::Tensor& output,
                   const at::Tensor& target) {
  if (share == 0) return (output * 0).sum().to(c10::kFloat);
  return options.loss(output, target, options.label_smoothing);
}

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

// What the first forward of a batch finds; an observer that repeats it changes nothing.
class Batch {
 public:
  Batch(const Setup& setup, loop::Step& step, const data::Batch& batch)
      : setup_(setup),
        options_(setup.options),
        step_(step),
        batch_(batch),
        share_(setup.ranks.are_several() && !options_.losses
                   ? options_.loss.share_that_counts(batch.target)
                   : 1) {}

  StepSums train(const loop::MicroBatch& how) {
    std::vector<at::Tensor> losses;
    if (options_.losses)
      losses = step_.batch([&] { return all_losses(); }, how);
    else
      losses = {step_.batch([&] { return setup_.network.forward(input()); },
                            [&](const at::Tensor& output) { return loss(output); }, how)};
    for (const at::Tensor& loss : losses) add_up(sums_.loss, loss);
    return sums_;
  }
  double share() const { return share_; }

 private:
  data::Batch input() const {
    data::Batch result = batch_;
    result.input = step_.input(batch_.input);
    return result;
  }

  at::Tensor loss(const at::Tensor& output) {
    at::Tensor loss = loss_of(options_, share_, output, batch_.target);
    if (!std::exchange(is_seen_, true)) {
      const at::Tensor right = options_.loss.is_right(output, batch_.target);
      if (right.defined()) sums_.correct = right.sum();
      sums_.answers = options_.loss.answers(output, batch_.target);
      sums_.share = share_;
      judge({loss});
    }
    penalise(loss);
    return loss;
  }

  std::vector<at::Tensor> all_losses() {
    std::vector<at::Tensor> losses = options_.losses(setup_.network, input());
    if (options_.gradient_penalty == 0) return losses;
    if (!std::exchange(is_seen_, true)) judge(losses);
    const Autocast outside(options_.device.type(), AutocastOptions{.enabled = false});
    for (at::Tensor& loss : losses) penalise(loss);
    return losses;
  }

  void judge(const std::vector<at::Tensor>& losses) {
    if (options_.gradient_penalty == 0) return;
    for (const at::Tensor& loss : losses)
      if (loss.defined()) add_up(sums_.judged, loss.detach().reshape({}));
  }

  void penalise(at::Tensor& loss) const {
    if (options_.gradient_penalty == 0) return;
    const at::Tensor penalty = penalty_of(setup_, step_, loss);
    if (penalty.defined()) loss = loss + penalty;
  }

  const Setup& setup_;
  const TrainerOptions& options_;
  loop::Step& step_;
  const data::Batch& batch_;
  const double share_;  // with several ranks: of the targets, those that count
  StepSums sums_;
  bool is_seen_ = false;
};

}  // namespace

void add_batch(const Setup& setup, loop::Step& step, UnreadStep& window, const data::Batch& batch,
               bool ends_step, int64_t epoch) {
  Batch one(setup, step, batch);
  StepSums of_batch = one.train(
      {.inputs = inputs_of(batch), .last = ends_step, .weight = one.share(), .epoch = epoch});
  const int64_t examples = data::examples_of(batch);
  for (at::Tensor* mean : {&of_batch.loss, &of_batch.judged})
    if (mean->defined()) *mean = sum_over(*mean, of_batch.answers, examples);
  add_up(window.sums.loss, of_batch.loss);
  add_up(window.sums.judged, of_batch.judged);
  add_up(window.sums.correct, of_batch.correct);
  add_up(window.sums.answers, of_batch.answers);
  window.examples += examples;
  window.batches += 1;
  window.shares += one.share();
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
