#include "demi/train/training_step.h"

#include <ATen/ops/ones.h>
#include <torch/csrc/autograd/autograd.h>

#include <optional>
#include <utility>

#include "demi/autocast/backward.h"
#include "demi/distributed/sync_batch_norm.h"
#include "demi/optim/clip.h"
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

void add_up(at::Tensor& sum, const at::Tensor& more) { sum = sum.defined() ? sum + more : more; }

// loss + weight x |d loss / d parameters|. The gradient is taken of the scaled loss, so that it
// does not underflow, and unscaled before its norm.
void penalise(Setup& setup, std::vector<at::Tensor>& losses) {
  const auto parameters = setup.network.module->parameters();
  GradScaler& scaler = setup.scaler;
  for (at::Tensor& loss : losses) {
    const at::Tensor scale = scaler.scale(at::ones({}, loss.options().requires_grad(false)));
    const auto gradients = torch::autograd::grad({scaler.scale(loss)}, parameters, {},
                                                 /*retain_graph=*/true, /*create_graph=*/true,
                                                 /*allow_unused=*/true);
    at::Tensor squares;
    for (const at::Tensor& gradient : gradients) {
      if (!gradient.defined()) continue;
      add_up(squares, (gradient.to(loss.scalar_type()) / scale).square().sum());
    }
    if (squares.defined()) loss = loss + setup.options.gradient_penalty * squares.sqrt();
  }
}

// The losses of the batch, on a graph. Right answers are added to the step's.
std::vector<at::Tensor> losses_of(Setup& setup, UnreadStep& step, const data::Batch& batch,
                                  profile::PhaseTimer& timer, const RepeatOptions& how) {
  const TrainerOptions& options = setup.options;
  if (options.losses) {
    const Autocast region = region_of(setup.precision, options.device, options.op_policy);
    return options.losses(setup.network, input_for(setup.precision, batch));
  }
  const at::Tensor output =
      forward_in(setup.precision, setup.network, batch, options.device, options.op_policy);
  if (how.after_forward) how.after_forward(output);
  timer.enter(Phase::loss);
  const at::Tensor loss = options.loss(output, batch.target, options.label_smoothing);
  const at::Tensor right = options.loss.is_right(output, batch.target);
  if (right.defined()) add_up(step.correct, right.sum());
  return {loss};
}

// The sum of the losses, without a graph. `sends`: the last backward averages over the ranks.
at::Tensor forward_and_backward(Setup& setup, UnreadStep& step, const data::Batch& batch,
                                bool sends, profile::PhaseTimer& timer, const RepeatOptions& how) {
  const TrainerOptions& options = setup.options;
  timer.enter(Phase::forward);
  std::vector<at::Tensor> losses = losses_of(setup, step, batch, timer, how);
  timer.enter(Phase::backward);
  if (options.gradient_penalty > 0) penalise(setup, losses);
  at::Tensor sum;  // of several losses, detached
  for (std::size_t i = 0; i < losses.size(); ++i) {
    const at::Tensor share =
        options.accumulate > 1 ? losses[i] / static_cast<double>(options.accumulate) : losses[i];
    const at::Tensor scaled = setup.scaler.scale(share);
    if (how.before_backward) how.before_backward(scaled);
    const bool is_last = i + 1 == losses.size();
    const auto hold = sends && is_last ? nullptr : setup.ranks.hold();
    demi::backward(scaled, {}, /*retain_graph=*/!is_last);
    add_up(sum, losses[i].detach());
  }
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
  at::Tensor loss = forward_and_backward(setup, step, batch, ends_step, timer, how);
  const int64_t examples = batch.target.size(0);
  add_up(step.loss, loss * static_cast<double>(examples));
  step.examples += examples;
  return loss;
}

at::Tensor repeat_batch(Setup& setup, const data::Batch& batch, const RepeatOptions& how) {
  const Exchanged exchanged(setup, how);
  const distributed::LocalBatchNorm local;  // the other ranks do not repeat it
  UnreadStep unread;
  profile::PhaseTimer timer(setup.options.device);
  return forward_and_backward(setup, unread, batch, /*sends=*/false, timer, how);
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
  if (setup.average) setup.average->update(results.back());
  setup.scaler.update();
  for (const auto& optimizer : options.optimizers) optimizer->zero_grad();
  for (const auto& schedule : setup.schedules) schedule->step();
  return results;
}

}  // namespace demi::train
