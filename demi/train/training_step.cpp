#include "demi/train/training_step.h"

#include <ATen/ops/ones.h>
#include <torch/csrc/autograd/autograd.h>

#include <optional>
#include <unordered_set>
#include <utility>

#include "demi/autocast/backward.h"
#include "demi/core/error.h"
#include "demi/distributed/sync_batch_norm.h"
#include "demi/optim/clip.h"
#include "demi/tensor/module_tensors.h"
#include "demi/train/forward.h"

namespace demi::train {
namespace {

using profile::Phase;

std::vector<at::Tensor> parameters_of(const torch::optim::Optimizer& optimizer) {
  std::vector<at::Tensor> parameters;
  for (const auto& group : optimizer.param_groups())
    parameters.insert(parameters.end(), group.params().begin(), group.params().end());
  return parameters;
}

void add_up(at::Tensor& sum, const at::Tensor& more) {
  if (more.defined()) sum = sum.defined() ? sum + more : more;
}

// weight x |d loss / d parameters|, for each loss. The gradient is taken of the scaled loss, so
// that it does not underflow, and unscaled before its norm.
std::vector<at::Tensor> penalties_of(Setup& setup, const std::vector<at::Tensor>& losses) {
  std::vector<at::Tensor> parameters =
      tensor::without_names(tensor::parameters_once(*setup.network.module));
  std::erase_if(parameters, [](const at::Tensor& one) { return !one.requires_grad(); });
  GradScaler& scaler = setup.scaler;
  std::vector<at::Tensor> penalties;
  for (const at::Tensor& loss : losses) {
    const at::Tensor scale = scaler.scale(at::ones({}, loss.options().requires_grad(false)));
    const auto gradients = torch::autograd::grad({scaler.scale(loss)}, parameters, {},
                                                 /*retain_graph=*/true, /*create_graph=*/true,
                                                 /*allow_unused=*/true);
    at::Tensor squares;
    for (const at::Tensor& gradient : gradients) {
      if (!gradient.defined()) continue;
      add_up(squares, (gradient.to(loss.scalar_type()) / scale).square().sum());
    }
    penalties.push_back(squares.defined() ? setup.options.gradient_penalty * squares.sqrt()
                                          : at::Tensor());
  }
  return penalties;
}

// LibTorch's messages about these name neither loss nor option.
void check_losses(const std::vector<at::Tensor>& losses) {
  const auto refuse = [](const char* what, const std::string& seen, const char* accepted) {
    throw UsageError({.where = "train.Trainer",
                      .what = what,
                      .seen = seen,
                      .accepted = accepted,
                      .advice = "see TrainerOptions::loss and losses"});
  };
  if (losses.empty()) refuse("the batch has no loss", "an empty vector", "one loss or more");
  for (const at::Tensor& loss : losses) {
    if (!loss.defined()) refuse("a loss is undefined", "an undefined tensor", "a scalar tensor");
    if (loss.numel() != 1 || !loss.is_floating_point())
      refuse("a loss is not one floating point number",
             c10::str(loss.sizes(), " ", c10::toString(loss.scalar_type())),
             "the mean over the batch, a scalar tensor");
    if (!loss.requires_grad())
      refuse("a loss depends on nothing that is trained", "a tensor without gradient",
             "a function of parameters that require a gradient");
  }
}

// What a batch's forward gives: losses on a graph, and the sums over its answers.
struct Forward {
  std::vector<at::Tensor> losses;
  at::Tensor correct, answers;
  double share = 1;  // with several ranks: of the targets, those that count
};

// With several ranks a mean counts as much as it has targets that are not ignored: those of all
// ranks are one batch. The factor that this lacks is known after the step's totals. The mean of
// nothing is NaN, and counts for nothing.
at::Tensor loss_of(const TrainerOptions& options, double share, const at::Tensor& output,
                   const at::Tensor& target) {
  if (share == 0) return (output * 0).sum().to(c10::kFloat);
  return options.loss(output, target, options.label_smoothing);
}

Forward forward_of(Setup& setup, const data::Batch& batch, profile::PhaseTimer& timer,
                   const RepeatOptions& how) {
  const TrainerOptions& options = setup.options;
  if (options.losses) {
    const Autocast region = region_of(setup.precision, options.device, options.op_policy);
    return {.losses = options.losses(setup.network, input_for(setup.precision, batch))};
  }
  const at::Tensor output =
      forward_in(setup.precision, setup.network, batch, options.device, options.op_policy);
  if (how.after_forward) how.after_forward(output);
  timer.enter(Phase::loss);
  const double share = setup.ranks.are_several() ? options.loss.share_that_counts(batch.target) : 1;
  Forward result{.losses = {loss_of(options, share, output, batch.target)}};
  result.share = share;
  const at::Tensor right = options.loss.is_right(output, batch.target);
  if (right.defined()) result.correct = right.sum();
  result.answers = options.loss.answers(output, batch.target);
  return result;
}

// The batch's sums, in which the losses are still means. `sends`: the last backward averages over
// the ranks.
StepSums forward_and_backward(Setup& setup, const data::Batch& batch, bool sends,
                              profile::PhaseTimer& timer, const RepeatOptions& how) {
  const TrainerOptions& options = setup.options;
  timer.enter(Phase::forward);
  auto [losses, correct, answers, share_of_targets] = forward_of(setup, batch, timer, how);
  check_losses(losses);
  timer.enter(Phase::backward);
  StepSums sum{.correct = correct, .answers = answers, .share = share_of_targets};
  if (options.gradient_penalty > 0) {
    const std::vector<at::Tensor> penalties = penalties_of(setup, losses);
    for (std::size_t i = 0; i < losses.size(); ++i) {
      add_up(sum.judged, losses[i].detach().reshape({}));
      if (penalties[i].defined()) losses[i] = losses[i] + penalties[i];
    }
  }
  const std::int64_t rounds = setup.ranks.rounds();
  for (std::size_t i = 0; i < losses.size(); ++i) {
    at::Tensor share =
        options.accumulate > 1 ? losses[i] / static_cast<double>(options.accumulate) : losses[i];
    if (share_of_targets != 1) share = share * share_of_targets;
    const at::Tensor scaled = setup.scaler.scale(share);
    if (how.before_backward) how.before_backward(scaled);
    const bool is_last = i + 1 == losses.size();
    const auto hold = sends && is_last ? nullptr : setup.ranks.hold();
    demi::backward(scaled, {}, /*retain_graph=*/!is_last);
    add_up(sum.loss, losses[i].detach().reshape({}));
  }
  // The last loss reached no parameter of the ranks.
  if (sends && setup.ranks.rounds() == rounds) setup.ranks.average();
  timer.enter(Phase::other);
  return sum;
}

// The run has the region and the scaler that are asked for while this lives.
class Exchanged {
 public:
  Exchanged(Setup& setup, const RepeatOptions& how)
      : setup_(setup),
        autocast_(setup.precision.autocast),
        ops_(setup.options.op_policy),
        scaler_(how.loss_scale && *how.loss_scale != 1 ? GradScaler({.init_scale = *how.loss_scale})
                                                       : GradScaler({.enabled = false})),
        exchanges_scaler_(!how.scaler || how.loss_scale) {
    if (!how.autocast) setup_.precision.autocast.reset();
    if (how.format) {
      setup_.precision.autocast = how.format;
      setup_.options.op_policy = how.op_policy;
    }
    if (exchanges_scaler_) std::swap(setup_.scaler, scaler_);
  }
  ~Exchanged() {
    setup_.precision.autocast = autocast_;
    std::swap(setup_.options.op_policy, ops_);
    if (exchanges_scaler_) std::swap(setup_.scaler, scaler_);
  }
  Exchanged(const Exchanged&) = delete;
  Exchanged& operator=(const Exchanged&) = delete;

 private:
  Setup& setup_;
  std::optional<c10::ScalarType> autocast_;
  std::optional<OpPolicy> ops_;
  GradScaler scaler_;
  bool exchanges_scaler_ = false;
};

}  // namespace

at::Tensor add_batch(Setup& setup, UnreadStep& step, const data::Batch& batch, bool ends_step,
                     profile::PhaseTimer& timer, const RepeatOptions& how) {
  StepSums of_batch = forward_and_backward(setup, batch, ends_step, timer, how);
  const at::Tensor loss = of_batch.loss;
  const int64_t examples = data::examples_of(batch);
  for (at::Tensor* mean : {&of_batch.loss, &of_batch.judged})
    if (mean->defined()) *mean = sum_over(*mean, of_batch.answers, examples);
  add_up(step.sums.loss, of_batch.loss);
  add_up(step.sums.judged, of_batch.judged);
  add_up(step.sums.correct, of_batch.correct);
  add_up(step.sums.answers, of_batch.answers);
  step.examples += examples;
  step.batches += 1;
  step.shares += of_batch.share;
  return loss;
}

at::Tensor repeat_batch(Setup& setup, const data::Batch& batch, const RepeatOptions& how) {
  const Exchanged exchanged(setup, how);
  const distributed::LocalBatchNorm local;  // the other ranks do not repeat it
  profile::PhaseTimer timer(setup.options.device);
  return forward_and_backward(setup, batch, /*sends=*/false, timer, how).loss;
}

void scale_gradients(Setup& setup, double factor) {
  const at::NoGradGuard no_grad;
  std::unordered_set<const at::TensorImpl*> seen;
  for (const auto& optimizer : setup.options.optimizers)
    for (const at::Tensor& p : parameters_of(*optimizer))
      if (p.grad().defined() && seen.insert(p.unsafeGetTensorImpl()).second)
        p.mutable_grad().mul_(factor);
}

std::vector<StepResult> update(Setup& setup, profile::PhaseTimer& timer) {
  const TrainerOptions& options = setup.options;
  std::vector<StepResult> results;
  for (const auto& optimizer : options.optimizers) {
    if (options.clip_norm > 0) {
      timer.enter(Phase::unscale);
      setup.scaler.unscale_(*optimizer);
      optim::clip_grad_norm_(parameters_of(*optimizer), options.clip_norm);
      timer.enter(Phase::step);
    }
    results.push_back(setup.scaler.step(*optimizer));
  }
  if (setup.average) setup.average->update(results);
  setup.scaler.update();
  for (const auto& optimizer : options.optimizers) optimizer->zero_grad();
  return results;
}

}  // namespace demi::train
