#include "demi/train/trainer.h"

#include <ATen/ops/ones.h>
#include <ATen/ops/stack.h>
#include <fmt/format.h>
#include <torch/csrc/autograd/autograd.h>

#include <chrono>
#include <cmath>
#include <limits>
#include <string>

#include "demi/autocast/backward.h"
#include "demi/core/error.h"
#include "demi/core/flush_subnormals.h"
#include "demi/data/tensor_loader.h"
#include "demi/data/to_device.h"
#include "demi/optim/adam.h"
#include "demi/optim/clip.h"
#include "demi/profile/memory.h"
#include "demi/profile/phase_timer.h"
#include "demi/scaler/grad_scaler.h"
#include "demi/schedule/lr_scheduler.h"
#include "demi/train/forward.h"

namespace demi::train {
namespace {

using profile::Phase;

// A loss that is NaN or Inf from the first step on is answered after this many: a loss scale that
// is still too high overflows the gradients, never the loss, which is read before it is scaled.
constexpr int64_t kFirstSteps = 3;

void require(bool good, std::string_view what, const std::string& seen, std::string_view accepted) {
  if (!good)
    throw UsageError({.where = "train.Trainer", .what = what, .seen = seen, .accepted = accepted});
}

void check_epochs(int64_t epochs) {
  require(epochs >= 0, "epochs is negative", std::to_string(epochs), "0 or more");
}

void check(const TrainerOptions& options) {
  check_epochs(options.epochs);
  require(options.accumulate >= 1, "accumulate is below 1", std::to_string(options.accumulate),
          "1 or more batches");
  require(options.clip_norm >= 0, "clip_norm is negative", std::to_string(options.clip_norm),
          "0 (off) or more");
  require(options.read_every >= 1, "read_every is below 1", std::to_string(options.read_every),
          "1 or more steps");
  require(options.max_steps >= 0, "max_steps is negative", std::to_string(options.max_steps),
          "0 (by epochs) or more steps");
  require(options.gradient_penalty >= 0, "gradient_penalty is negative",
          std::to_string(options.gradient_penalty), "0 (off) or more");
  require(options.ema_decay >= 0 && options.ema_decay < 1, "ema_decay is out of range",
          std::to_string(options.ema_decay), "0 (off) up to, but not including, 1");
  require(options.early_stopping >= 0, "early_stopping is negative",
          std::to_string(options.early_stopping), "0 (never) or more epochs");
  require(options.label_smoothing >= 0 && options.label_smoothing < 1,
          "label_smoothing is out of range", std::to_string(options.label_smoothing),
          "0 up to, but not including, 1");
}

GradScalerOptions scaler_options(const TrainerOptions& options, const Precision& precision) {
  GradScalerOptions result = options.scaler;
  const LossScale::Kind kind = options.loss_scale.kind;
  result.enabled = kind == LossScale::Kind::automatic ? precision.autocast == c10::kHalf
                                                      : kind != LossScale::Kind::off;
  if (kind == LossScale::Kind::statistics) result.mode = ScaleMode::kAmax;
  if (kind == LossScale::Kind::fixed) {
    result.mode = ScaleMode::kStatic;
    result.init_scale = options.loss_scale.value;
  }
  return result;
}

double learning_rate(const torch::optim::Optimizer& optimizer) {
  return optimizer.param_groups().front().options().get_lr();
}

// Whether there is no point in going on after `steps` steps of which the last `bad_in_a_row` were
// bad.
bool is_hopeless(int64_t bad_in_a_row, int64_t steps, int64_t give_up_after) {
  if (give_up_after == 0 || bad_in_a_row == 0) return false;
  const bool never_good = bad_in_a_row == steps;
  return bad_in_a_row >= give_up_after || (never_good && steps >= kFirstSteps);
}

// Why training ended: the first of the bad steps in a row, and what to try.
std::string complaint_of(const History& history, int64_t bad_steps, const Precision& precision) {
  const StepMetrics& first =
      history.steps[history.steps.size() - static_cast<std::size_t>(bad_steps)];
  const bool is_loss = !std::isfinite(first.loss);
  std::string text =
      fmt::format("{} NaN or Inf from step {} on, in {} step{}; learning rate {:g}",
                  is_loss ? "the loss is" : "the gradients hold, though the loss is sound,",
                  first.step, bad_steps, bad_steps == 1 ? "" : "s in a row", first.learning_rate);
  if (first.loss_scale) text += fmt::format(", loss scale {:g}", *first.loss_scale);
  if (precision.is_mixed()) {
    text +=
        "; train once without the region (TrainerOptions::autocast = false) and once without loss "
        "scaling (TrainerOptions::loss_scale off): the one that mends it is where the NaN comes "
        "from; if neither does, the learning rate is too high or the data hold NaN";
  } else {
    text += "; try a lower learning rate, and look for NaN in the data";
  }
  return text;
}

std::vector<at::Tensor> parameters_of(const torch::optim::Optimizer& optimizer) {
  std::vector<at::Tensor> parameters;
  for (const auto& group : optimizer.param_groups())
    parameters.insert(parameters.end(), group.params().begin(), group.params().end());
  return parameters;
}

}  // namespace

int64_t steps_of(int64_t batches, int64_t accumulate) {
  return batches == 0 ? 0 : (batches - 1) / accumulate + 1;
}

// The state that a fit carries from step to step.
struct Trainer::Run {
  // Not yet read from the device.
  struct Pending {
    StepMetrics record;
    at::Tensor loss, correct;         // scalars
    std::vector<StepResult> results;  // one an optimizer
    int64_t examples = 0;             // of this step
  };

  Run(const GradScalerOptions& scaling, const TrainerOptions& options,
      const data::Loader& training_loader, const data::Loader* validation_loader,
      int64_t number_of_epochs)
      : training(training_loader),
        validation(validation_loader),
        epochs(number_of_epochs),
        scaler(scaling),
        timer(options.device, options.synchronise_phases) {
    for (const auto& optimizer : options.optimizers) {
      if (options.schedule)
        schedules.push_back(std::make_unique<optim::lr::Scheduler>(*optimizer, options.schedule,
                                                                   options.momentum_schedule));
    }
  }

  const data::Loader& training;
  const data::Loader* validation;  // none: null
  int64_t epochs;
  int64_t epochs_begun = 0;
  int64_t position = 0;   // of the next batch
  bool in_epoch = false;  // its end is still to come
  GradScaler scaler;
  std::vector<std::unique_ptr<optim::lr::Scheduler>> schedules;  // one an optimizer
  profile::PhaseTimer timer;
  std::vector<Pending> pending;
  Pending window;  // the step whose batches are being accumulated
  History history;
  EpochRecord epoch;
  Evaluation best;
  int64_t step = 0, correct = 0, bad_steps_in_a_row = 0;
  double loss_sum = 0;  // over the epoch's examples
  std::chrono::steady_clock::time_point window_start;
  profile::PhaseTimer::Seconds waited_before{0};  // for data, in this epoch, at window_start

  bool over(const TrainerOptions& options) const {
    return history.stopped || history.failed || history.early_stopped ||
           (options.max_steps > 0 && step >= options.max_steps);
  }
};

Trainer::Trainer(Network network, TrainerOptions options)
    : network_(std::move(network)),
      options_(std::move(options)),
      precision_(options_.precision.value_or(global_precision())),
      scaler_options_(scaler_options(options_, precision_)) {
  check(options_);
  demi::check(scaler_options_);
  if (!precision_.is_mixed() && precision_.weights != c10::kFloat) {
    network_.module->to(precision_.weights);
  }
  if (!options_.autocast) precision_.autocast.reset();
  if (options_.optimizers.empty()) {
    options_.optimizers.push_back(
        std::make_shared<optim::Adam>(network_.module->parameters(), optim::AdamOptions(1e-3)));
  }
  if (options_.ema_decay > 0) average_.emplace(*network_.module, options_.ema_decay);
}

Trainer::Trainer(Network network, std::shared_ptr<torch::optim::Optimizer> optimizer,
                 TrainerOptions options)
    : Trainer(std::move(network), [&] {
        options.optimizers = {std::move(optimizer)};
        return std::move(options);
      }()) {}

void Trainer::swap_average() {
  if (average_) average_->swap();
}

// The loss and its gradients, or of all losses their sum. What is returned is detached.
at::Tensor Trainer::backward(Run& run, const data::Batch& batch) {
  run.timer.enter(Phase::forward);
  std::vector<at::Tensor> losses;
  if (options_.losses) {
    const Autocast region = region_of(precision_, options_.device);
    losses = options_.losses(network_, input_for(precision_, batch));
  } else {
    const at::Tensor output = forward_in(precision_, network_, batch, options_.device);
    losses = {options_.loss(output, batch.target, options_.label_smoothing)};
    const at::Tensor right = options_.loss.is_right(output, batch.target);
    if (right.defined()) {
      at::Tensor& correct = run.window.correct;
      correct = correct.defined() ? correct + right.sum() : right.sum();
    }
  }
  run.timer.enter(Phase::backward);
  if (options_.gradient_penalty > 0) penalise(run, losses);
  at::Tensor sum;
  for (std::size_t i = 0; i < losses.size(); ++i) {
    const at::Tensor share =
        options_.accumulate > 1 ? losses[i] / static_cast<double>(options_.accumulate) : losses[i];
    demi::backward(run.scaler.scale(share), {}, /*retain_graph=*/i + 1 < losses.size());
    sum = sum.defined() ? sum + losses[i].detach() : losses[i].detach();
  }
  return sum;
}

// loss + weight x |d loss / d parameters|. The gradient is taken of the scaled loss, so that it
// does not underflow, and unscaled before its norm.
void Trainer::penalise(Run& run, std::vector<at::Tensor>& losses) const {
  const auto parameters = network_.module->parameters();
  for (at::Tensor& loss : losses) {
    const at::Tensor scale = run.scaler.scale(at::ones({}, loss.options().requires_grad(false)));
    const auto gradients = torch::autograd::grad({run.scaler.scale(loss)}, parameters, {},
                                                 /*retain_graph=*/true, /*create_graph=*/true,
                                                 /*allow_unused=*/true);
    at::Tensor squares;
    for (const at::Tensor& gradient : gradients) {
      if (!gradient.defined()) continue;
      const at::Tensor square = (gradient.to(loss.scalar_type()) / scale).square().sum();
      squares = squares.defined() ? squares + square : square;
    }
    if (squares.defined()) loss = loss + options_.gradient_penalty * squares.sqrt();
  }
}

// Unscale, clip, step, schedule.
std::vector<StepResult> Trainer::update(Run& run) {
  std::vector<StepResult> results;
  for (const auto& optimizer : options_.optimizers) {
    if (options_.clip_norm > 0) {
      run.scaler.unscale_(*optimizer);
      optim::clip_grad_norm_(parameters_of(*optimizer), options_.clip_norm);
    }
    results.push_back(run.scaler.step(*optimizer));
  }
  if (average_) average_->update(results.back());
  run.scaler.update();
  for (const auto& optimizer : options_.optimizers) optimizer->zero_grad();
  for (const auto& schedule : run.schedules) schedule->step();
  return results;
}

void Trainer::step(Run& run, const data::Batch& batch, bool last_of_window) {
  const int64_t size = batch.target.size(0);
  const at::Tensor loss = backward(run, batch);

  run.timer.enter(Phase::other);
  const at::Tensor weighted = loss * static_cast<double>(size);
  Run::Pending& window = run.window;
  window.loss = window.loss.defined() ? window.loss + weighted : weighted;
  window.examples += size;
  if (!last_of_window) return;

  run.timer.enter(Phase::optimizer);
  window.record.epoch = run.epoch.epoch;
  window.record.step = ++run.step;
  window.record.learning_rate = learning_rate(*options_.optimizers.front());
  window.results = update(run);
  run.timer.enter(Phase::other);
  end_window(run);
}

// The step's own time; the next one's begins.
void Trainer::end_window(Run& run) {
  const auto now = std::chrono::steady_clock::now();
  const auto waited = run.timer.spent(Phase::data);
  run.window.record.seconds = std::chrono::duration<double>(now - run.window_start).count();
  run.window.record.data_seconds = (waited - run.waited_before).count();
  run.window_start = now;
  run.waited_before = waited;
  run.pending.push_back(std::exchange(run.window, {}));
}

// The record of one step for the callbacks.
struct Trainer::Told {
  StepMetrics step;
  int64_t examples = 0;  // of the epoch so far
};

// The pending steps, with one copy from the device for all of them, put into the history.
std::vector<Trainer::Told> Trainer::taken_from_device(Run& run) {
  std::vector<Told> told;
  if (run.pending.empty()) return told;
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
    StepMetrics& record = pending.record;
    const double examples = static_cast<double>(pending.examples);
    const double loss_sum = loss[static_cast<int64_t>(i)].item<double>();
    record.loss = loss_sum / examples;
    if (correct.defined()) {
      const int64_t right = correct[static_cast<int64_t>(i)].item<int64_t>();
      record.accuracy = static_cast<double>(right) / examples;
      run.correct += right;
    }
    for (const StepResult& result : pending.results) record.skipped |= result.skipped();
    if (scaled) record.loss_scale = pending.results.front().scale();
    run.loss_sum += loss_sum;
    run.epoch.examples += pending.examples;
    run.history.skipped_steps += record.skipped;
    // A scaler skips steps to find its scale; where there is none, a skipped step is a fault.
    const bool bad = !std::isfinite(record.loss) || (record.skipped && !scaled);
    run.bad_steps_in_a_row = bad ? run.bad_steps_in_a_row + 1 : 0;
    run.history.steps.push_back(record);
    told.push_back({record, run.epoch.examples});
  }
  run.pending.clear();
  return told;
}

void Trainer::read(Run& run) {
  for (const Told& told : taken_from_device(run))
    for (const auto& callback : callbacks_) callback->on_step(told.step, told.examples);
  give_up_if_hopeless(run);
}

void Trainer::give_up_if_hopeless(Run& run) const {
  if (!run.history.failed && is_hopeless(run.bad_steps_in_a_row, run.step, options_.give_up_after))
    run.history.failed = complaint_of(run.history, run.bad_steps_in_a_row, precision_);
}

// After the last step one loss of NaN or Inf is enough, in training or in validation: there is no
// step to mend it.
void Trainer::fail_if_it_ends_badly(Run& run) const {
  History& history = run.history;
  if (history.failed || options_.give_up_after == 0 || history.steps.empty()) return;
  if (!std::isfinite(history.steps.back().loss)) {
    history.failed = complaint_of(history, run.bad_steps_in_a_row, precision_);
    return;
  }
  const auto& validation = history.epochs.back().validation;
  if (validation && !std::isfinite(validation->loss))
    history.failed = fmt::format(
        "the loss in validation is NaN or Inf after step {}, the last one; learning rate {:g}",
        history.steps.back().step, history.steps.back().learning_rate);
}

void Trainer::begin_epoch(Run& run) {
  if (!network_.module->is_training()) network_.module->train();
  run.epoch = EpochRecord{.epoch = ++run.epochs_begun};
  run.position = 0;
  run.in_epoch = true;
  run.correct = 0;
  run.loss_sum = 0;
  run.timer.reset();
  const int64_t steps = steps_of(run.training.batches(), options_.accumulate);
  for (const auto& callback : callbacks_)
    callback->on_epoch_begin(run.epoch.epoch, run.epochs, steps);
}

// Goes on with the epoch until the run's step `until` is done; whether the epoch's last is.
bool Trainer::train_epoch(Run& run, int64_t until) {
  const int64_t batches = run.training.batches();
  const auto start = std::chrono::steady_clock::now();
  run.window_start = start;
  run.waited_before = run.timer.spent(Phase::data);
  for (; run.position < batches && run.step < until && !run.over(options_); ++run.position) {
    run.timer.enter(Phase::data);
    const data::Batch batch =
        data::to_device(run.training.batch(run.epoch.epoch - 1, run.position), options_.device);
    const bool last = run.position + 1 == batches;
    step(run, batch, last || (run.position + 1) % options_.accumulate == 0);
    const bool first_word = run.step == kFirstSteps && options_.give_up_after > 0;
    if (last || first_word || static_cast<int64_t>(run.pending.size()) >= options_.read_every)
      read(run);
    if (options_.should_stop && options_.should_stop()) run.history.stopped = true;
  }
  const bool whole = run.position == batches || run.over(options_);
  if (whole) read(run);
  profile::synchronize(options_.device);
  run.timer.pause();
  run.epoch.seconds +=
      std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  return whole;
}

void Trainer::end_epoch(Run& run) {
  run.in_epoch = false;
  for (std::size_t i = 0; i < profile::kPhaseNames.size(); ++i) {
    run.epoch.phase_seconds[i] = run.timer.spent(static_cast<Phase>(i)).count();
  }
  const double examples = static_cast<double>(std::max<int64_t>(run.epoch.examples, 1));
  run.epoch.loss = run.loss_sum / examples;
  if (options_.loss.has_accuracy() && !options_.losses)
    run.epoch.accuracy = static_cast<double>(run.correct) / examples;
  if (run.validation && !run.history.stopped && !run.history.failed) validate(run);
  run.history.epochs.push_back(run.epoch);
  for (const auto& callback : callbacks_) callback->on_epoch_end(run.epoch);
}

EvaluateOptions Trainer::evaluate_options() const {
  return {.precision = precision_,
          .device = options_.device,
          .loss = options_.loss,
          .metrics = options_.metrics,
          .per_class = false,
          .flush_subnormals = options_.flush_subnormals,
          .should_stop = options_.should_stop};
}

void Trainer::validate(Run& run) {
  for (const auto& callback : callbacks_) callback->on_evaluate_begin(run.epoch.epoch);
  History& history = run.history;
  {
    const AverageInPlace average(*this);  // given back also where evaluation throws
    Evaluation evaluation = evaluate(network_, *run.validation, evaluate_options());
    history.stopped = evaluation.stopped;
    if (evaluation.stopped) return;
    run.epoch.validation = std::move(evaluation);
  }
  if (!history.best_epoch || run.epoch.validation->better_than(run.best)) {
    history.best_epoch = run.epoch.epoch;
    run.best = *run.epoch.validation;
  }
  history.early_stopped = options_.early_stopping > 0 &&
                          run.epoch.epoch - *history.best_epoch >= options_.early_stopping;
}

History Trainer::fit(const data::Loader& training, const data::Loader* validation) {
  return fit_epochs(training, validation, options_.epochs);
}

History Trainer::fit_epochs(const data::Loader& training, const data::Loader* validation,
                            int64_t epochs) {
  history_ = {};
  Parts parts(*this, training, validation, epochs);
  try {
    parts.advance(std::numeric_limits<int64_t>::max());
  } catch (...) {
    history_ = parts.history();
    throw;
  }
  history_ = parts.history();
  return history_;
}

Trainer::Parts::Parts(Trainer& trainer, const data::Loader& training,
                      const data::Loader* validation)
    : Parts(trainer, training, validation, trainer.options_.epochs) {}

Trainer::Parts::Parts(Trainer& trainer, const data::Loader& training,
                      const data::Loader* validation, int64_t epochs)
    : trainer_(trainer) {
  check_epochs(epochs);
  run_ = std::make_unique<Run>(trainer.scaler_options_, trainer.options_, training, validation,
                               epochs);
}

Trainer::Parts::~Parts() = default;

const History& Trainer::Parts::history() const { return run_->history; }

bool Trainer::Parts::advance(int64_t steps) {
  require(steps >= 1, "steps of a part are below 1", std::to_string(steps), "1 or more");
  Run& run = *run_;
  const int64_t until = run.step + std::min(steps, std::numeric_limits<int64_t>::max() - run.step);
  try {
    return trainer_.go_on(run, until);
  } catch (...) {
    // Steps that have not been read yet belong to the history, too. No callback is told, since one
    // of them may be what has thrown.
    try {
      taken_from_device(run);
    } catch (...) {  // NOLINT(bugprone-empty-catch): the device is what has failed; the first
                     // exception says so
    }
    throw;
  }
}

// Trains until the run's step `until` is done, or to the end; whether it is not there yet.
bool Trainer::go_on(Run& run, int64_t until) {
  const FlushSubnormals flush(options_.flush_subnormals && options_.device.is_cpu());
  const Tf32Mode tf32(precision_.tf32);
  while (run.in_epoch || (run.epochs_begun < run.epochs && !run.over(options_))) {
    if (!run.in_epoch) {
      if (run.step >= until) return true;
      begin_epoch(run);
    }
    if (!train_epoch(run, until)) return true;
    end_epoch(run);
  }
  fail_if_it_ends_badly(run);
  return false;
}

History Trainer::fit(const at::Tensor& x, const at::Tensor& y, const FitOptions& fit) {
  const auto loader = [this](const TensorPair& rows, const data::OrderOptions& order) {
    return data::TensorLoader(rows.x.to(options_.device), rows.y.to(options_.device), order);
  };
  const data::TensorLoader training =
      loader({x, y}, {.batch_size = fit.batch_size, .shuffle = fit.shuffle, .seed = fit.seed});
  if (!fit.validation.x.defined()) return fit_epochs(training, nullptr, fit.epochs);
  const data::TensorLoader validation = loader(fit.validation, {.batch_size = fit.batch_size});
  return fit_epochs(training, &validation, fit.epochs);
}

}  // namespace demi::train
