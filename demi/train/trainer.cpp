#include "demi/train/trainer.h"

#include <ATen/ops/stack.h>

#include <cmath>
#include <string>

#include "demi/core/error.h"
#include "demi/optim/clip.h"
#include "demi/optim/lr_scheduler.h"
#include "demi/scaler/grad_scaler.h"
#include "demi/train/forward.h"

namespace demi::train {
namespace {

using profile::Phase;

void check(const TrainerOptions& options) {
  const auto require = [](bool good, std::string_view what, const std::string& seen,
                          std::string_view accepted) {
    if (!good)
      throw UsageError(
          {.where = "train.Trainer", .what = what, .seen = seen, .accepted = accepted});
  };
  require(options.epochs >= 0, "epochs is negative", std::to_string(options.epochs), "0 or more");
  require(options.accumulate >= 1, "accumulate is below 1", std::to_string(options.accumulate),
          "1 or more batches");
  require(options.clip_norm >= 0, "clip_norm is negative", std::to_string(options.clip_norm),
          "0 (off) or more");
  require(options.read_every >= 1, "read_every is below 1", std::to_string(options.read_every),
          "1 or more steps");
  require(options.label_smoothing >= 0 && options.label_smoothing < 1,
          "label_smoothing is out of range", std::to_string(options.label_smoothing),
          "0 up to, but not including, 1");
}

GradScalerOptions scaler_options(const TrainerOptions& options) {
  GradScalerOptions result = options.scaler;
  switch (options.loss_scale.kind) {
    case LossScale::Kind::automatic:
      result.enabled = options.precision.autocast == c10::kHalf;
      break;
    case LossScale::Kind::dynamic:
      result.enabled = true;
      break;
    case LossScale::Kind::off:
      result.enabled = false;
      break;
    case LossScale::Kind::fixed:
      result.enabled = true;
      result.mode = ScaleMode::kStatic;
      result.init_scale = options.loss_scale.value;
      break;
  }
  return result;
}

double learning_rate(const torch::optim::Optimizer& optimizer) {
  return optimizer.param_groups().front().options().get_lr();
}

}  // namespace

// What one call of fit carries from step to step.
struct Trainer::Run {
  // Not yet read from the device.
  struct Pending {
    StepRecord record;
    at::Tensor loss, correct;  // scalars
    StepResult result;
    int64_t examples = 0;  // of this step
  };

  Run(Trainer& trainer, const TrainerOptions& options)
      : scaler(scaler_options(options)), timer(options.device, options.synchronise_phases) {
    if (options.schedule)
      schedule.emplace(*trainer.optimizer_, options.schedule, options.momentum_schedule);
  }

  GradScaler scaler;
  std::optional<optim::lr::Scheduler> schedule;
  profile::PhaseTimer timer;
  std::vector<Pending> pending;
  Pending window;  // the step whose batches are being accumulated
  History history;
  EpochRecord epoch;
  int64_t step = 0, correct = 0, bad_losses_in_a_row = 0;
  double loss_sum = 0;  // over the epoch's examples
};

Trainer::Trainer(Network network, std::shared_ptr<torch::optim::Optimizer> optimizer,
                 TrainerOptions options)
    : network_(std::move(network)), optimizer_(std::move(optimizer)), options_(std::move(options)) {
  check(options_);
  if (!options_.precision.is_mixed() && options_.precision.weights != c10::kFloat) {
    network_.module->to(options_.precision.weights);
  }
}

void Trainer::step(Run& run, const data::Batch& batch, bool last_of_window) {
  const int64_t size = batch.target.size(0);
  run.timer.enter(Phase::forward);
  const at::Tensor output = forward_in(options_.precision, network_, batch, options_.device);
  const at::Tensor loss = loss_of(options_.loss, output, batch.target, options_.label_smoothing);

  run.timer.enter(Phase::backward);
  const at::Tensor share =
      options_.accumulate > 1 ? loss / static_cast<double>(options_.accumulate) : loss;
  run.scaler.scale(share).backward();

  run.timer.enter(Phase::other);
  const at::Tensor weighted = loss.detach() * static_cast<double>(size);
  const at::Tensor correct = correct_count(options_.loss, output, batch.target);
  Run::Pending& window = run.window;
  window.loss = window.loss.defined() ? window.loss + weighted : weighted;
  if (correct.defined())
    window.correct = window.correct.defined() ? window.correct + correct : correct;
  window.examples += size;
  if (!last_of_window) return;

  run.timer.enter(Phase::optimizer);
  window.record.epoch = run.epoch.epoch;
  window.record.step = ++run.step;
  window.record.learning_rate = learning_rate(*optimizer_);
  if (options_.clip_norm > 0) {
    run.scaler.unscale_(*optimizer_);
    optim::clip_grad_norm_(network_.module->parameters(), options_.clip_norm);
  }
  window.result = run.scaler.step(*optimizer_);
  run.scaler.update();
  optimizer_->zero_grad();
  if (run.schedule) run.schedule->step();
  run.timer.enter(Phase::other);
  run.pending.push_back(std::exchange(run.window, {}));
}

void Trainer::read(Run& run) {
  if (run.pending.empty()) return;
  // One copy from the device for all pending steps.
  std::vector<at::Tensor> losses, corrects;
  for (const Run::Pending& pending : run.pending) {
    losses.push_back(pending.loss);
    if (pending.correct.defined()) corrects.push_back(pending.correct);
  }
  const at::Tensor loss = at::stack(losses).to(c10::kCPU, c10::kDouble);
  const at::Tensor correct = corrects.empty() ? at::Tensor() : at::stack(corrects).to(c10::kCPU);
  const bool scaled = run.scaler.is_enabled();
  for (std::size_t i = 0; i < run.pending.size(); ++i) {
    Run::Pending& pending = run.pending[i];
    const double examples = static_cast<double>(pending.examples);
    const double loss_sum = loss[static_cast<int64_t>(i)].item<double>();
    pending.record.loss = loss_sum / examples;
    if (correct.defined()) {
      const int64_t right = correct[static_cast<int64_t>(i)].item<int64_t>();
      pending.record.accuracy = static_cast<double>(right) / examples;
      run.correct += right;
    }
    pending.record.skipped = pending.result.skipped();
    if (scaled) pending.record.loss_scale = pending.result.scale();
    run.loss_sum += loss_sum;
    run.epoch.examples += pending.examples;
    run.history.skipped_steps += pending.record.skipped;
    run.bad_losses_in_a_row = std::isfinite(pending.record.loss) ? 0 : run.bad_losses_in_a_row + 1;
    run.history.steps.push_back(pending.record);
    for (const auto& callback : callbacks_) callback->on_step(pending.record, run.epoch.examples);
  }
  run.pending.clear();
  if (options_.give_up_after > 0 && run.bad_losses_in_a_row >= options_.give_up_after) {
    run.history.failed = "the loss has been NaN or Inf for " +
                         std::to_string(run.bad_losses_in_a_row) + " steps in a row (until step " +
                         std::to_string(run.step) + ")";
  }
}

History Trainer::fit(const data::Loader& training, const data::Loader* validation) {
  Run run(*this, options_);
  const Tf32Mode tf32(options_.precision.tf32);
  const int64_t batches = training.batches();
  const int64_t steps = (batches + options_.accumulate - 1) / options_.accumulate;
  const auto over = [&] { return run.history.stopped || run.history.failed; };

  for (int64_t epoch = 1; epoch <= options_.epochs && !over(); ++epoch) {
    network_.module->train();
    run.epoch = EpochRecord{.epoch = epoch};
    run.correct = 0;
    run.loss_sum = 0;
    run.timer.reset();
    for (const auto& callback : callbacks_) callback->on_epoch_begin(epoch, options_.epochs, steps);
    const auto start = std::chrono::steady_clock::now();
    for (int64_t position = 0; position < batches && !over(); ++position) {
      run.timer.enter(Phase::data);
      const data::Batch batch = training.batch(epoch - 1, position);
      const bool last = position + 1 == batches;
      step(run, batch, last || (position + 1) % options_.accumulate == 0);
      if (last || static_cast<int64_t>(run.pending.size()) >= options_.read_every) read(run);
      if (options_.should_stop && options_.should_stop()) run.history.stopped = true;
    }
    read(run);
    profile::synchronize(options_.device);
    run.timer.pause();
    run.epoch.seconds =
        std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    for (std::size_t i = 0; i < profile::kPhaseNames.size(); ++i) {
      run.epoch.phase_seconds[i] = run.timer.spent(static_cast<Phase>(i)).count();
    }
    const double examples = static_cast<double>(std::max<int64_t>(run.epoch.examples, 1));
    run.epoch.loss = run.loss_sum / examples;
    if (options_.loss != Loss::mse)
      run.epoch.accuracy = static_cast<double>(run.correct) / examples;
    if (validation && !over()) {
      for (const auto& callback : callbacks_) callback->on_evaluate_begin(epoch);
      run.epoch.validation =
          evaluate(network_, *validation, options_.precision, options_.device, options_.loss);
    }
    run.history.epochs.push_back(run.epoch);
    for (const auto& callback : callbacks_) callback->on_epoch_end(run.epoch);
  }
  return run.history;
}

}  // namespace demi::train
