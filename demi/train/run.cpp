#include "demi/train/run.h"

#include <ATen/Context.h>
#include <ATen/core/Generator.h>
#include <ATen/ops/scalar_tensor.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros_like.h>
#include <fmt/format.h>
#include <torch/types.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <mutex>
#include <string>
#include <utility>

#include "demi/core/error.h"
#include "demi/core/flush_subnormals.h"
#include "demi/data/to_device.h"
#include "demi/optim/optimizer.h"
#include "demi/train/agreement.h"
#include "demi/train/evaluate.h"
#include "demi/train/forward.h"
#include "demi/train/verdict.h"

namespace demi::train {
namespace {

using profile::Phase;

double learning_rate(const torch::optim::Optimizer& optimizer) {
  return optimizer.param_groups().front().options().get_lr();
}

EvaluateOptions evaluate_options(const Setup& setup) {
  const TrainerOptions& options = setup.options;
  return {.precision = setup.precision,
          .device = options.device,
          .op_policy = options.op_policy,
          .loss = options.loss,
          .metrics = options.metrics,
          .per_class = false,
          .flush_subnormals = options.flush_subnormals,
          .backends = options.backends,
          .should_stop = options.should_stop,
          .group = setup.ranks.group()};
}

// The averages are in the weights' places while this lives.
class SwappedAverage {
 public:
  explicit SwappedAverage(std::optional<EMA>& average) : average_(average) { swap(); }
  ~SwappedAverage() { swap(); }
  SwappedAverage(const SwappedAverage&) = delete;
  SwappedAverage& operator=(const SwappedAverage&) = delete;

 private:
  void swap() {
    if (average_) average_->swap();
  }
  std::optional<EMA>& average_;
};

// demi's optimizers have gradients of 16 bits while this lives: nobody but the Run comes between
// backward and step.
class LowPrecisionGrads {
 public:
  explicit LowPrecisionGrads(const TrainerOptions& options) {
    for (const auto& optimizer : options.optimizers) {
      auto* ours = dynamic_cast<optim::Optimizer*>(optimizer.get());
      if (!ours || ours->low_precision_grads()) continue;
      ours->set_low_precision_grads(true);
      switched_.push_back(ours);
    }
  }
  ~LowPrecisionGrads() {
    try {
      for (optim::Optimizer* optimizer : switched_) optimizer->set_low_precision_grads(false);
    } catch (...) {  // NOLINT(bugprone-empty-catch): no memory for gradients that nobody needs any
                     // more, or an exception that is on its way already
    }
  }
  LowPrecisionGrads(const LowPrecisionGrads&) = delete;
  LowPrecisionGrads& operator=(const LowPrecisionGrads&) = delete;

 private:
  std::vector<optim::Optimizer*> switched_;
};

// Of all optimizers together.
void add_results(const std::vector<StepResult>& results, bool scaled, StepMetrics& record) {
  double squares = 0;
  bool measured = !results.empty();
  for (const StepResult& result : results) {
    const StepResult::Numbers numbers = result.numbers();
    const double norm = numbers.grad_norm;
    const bool skipped = numbers.found_inf != 0;
    record.skipped |= skipped;
    measured &= skipped || !std::isnan(norm);  // NaN: no pass computed it
    squares += norm * norm;
    if (scaled && !record.loss_scale) record.loss_scale = numbers.scale;
  }
  if (measured) record.grad_norm = std::sqrt(squares);
}

Cut cut_of(const data::Loader& training, const TrainerOptions& options) {
  return {training.batches(), training.all_examples(), options.accumulate};
}

void check_cut(const Progress& progress, const Cut& now) {
  const Cut& then = progress.cut;
  if (!progress.in_epoch || then == now) return;
  const auto text = [](const Cut& cut) {
    return fmt::format("{} batches, {} examples, {} batches a step", cut.batches, cut.examples,
                       cut.accumulate);
  };
  throw UsageError({.where = "train.Trainer.resume",
                    .what = "the checkpoint stands in the middle of an epoch of other batches",
                    .seen = text(now),
                    .accepted = text(then),
                    .advice = "use the data, batch size and accumulation that it was saved with"});
}

// As torch::manual_seed set it.
std::uint64_t seed_of_cpu() {
  at::Generator generator = at::globalContext().defaultGenerator(c10::kCPU);
  const std::lock_guard lock(generator.mutex());
  return generator.current_seed();
}

}  // namespace

Run::Run(Setup& setup, const data::Loader& training, const data::Loader* validation, int64_t epochs,
         std::optional<Beginning> beginning)
    : setup_(setup),
      options_(setup.options),
      training_(training),
      validation_(validation),
      epochs_(epochs),
      beginning_(std::move(beginning)),
      state_(setup, progress_,
             [this] {
               if (is_counting_) count_seconds();
             }),
      timer_(setup.options.device, setup.options.synchronise_phases) {
  const Cut cut = cut_of(training, options_);
  if (beginning_) {
    check_cut(beginning_->progress, cut);
    progress_ = std::move(beginning_->progress);
    phases_before_ = progress_.epoch.phase_seconds;
    judge_early_stopping();
  }
  progress_.cut = cut;
  require_same_on_ranks();
  for (const auto& optimizer : options_.optimizers) optimizer->zero_grad();
}

// Before the first step: ranks that differ here would leave each other, or wait for each other.
void Run::require_same_on_ranks() const {
  if (!setup_.ranks.are_several()) return;
  std::string text = fmt::format("epochs {}\n", epochs_) + agreement_on(setup_);
  text += fmt::format("{} batches of training\n{} examples of training for each rank\n",
                      training_.batches(), training_.examples());
  text += fmt::format("validation {}\n",
                      validation_ ? fmt::format("on {} examples", validation_->all_examples())
                                  : std::string("none"));
  text +=
      fmt::format("begins after step {} of epoch {}, batch {}, with a sum of losses of {}\n",
                  progress_.step, progress_.epochs_begun, progress_.position, progress_.loss_sum);
  setup_.ranks.require_same("the training", text);
}

void Run::judge_early_stopping() {
  History& history = progress_.history;
  history.early_stopped =
      options_.early_stopping > 0 && history.best_epoch && !history.epochs.empty() &&
      history.epochs.back().epoch - *history.best_epoch >= options_.early_stopping;
}

bool Run::is_over() const {
  const History& history = progress_.history;
  return history.stopped || history.failed || history.early_stopped ||
         (options_.max_steps > 0 && progress_.step >= options_.max_steps);
}

// The step's sums, gradients and random numbers of a run that goes on; they are not loaded before,
// since whoever made the loaders may have drawn random numbers.
void Run::begin() {
  const bool is_begun = std::exchange(is_begun_, true);
  const auto agree_on_seed = [&](std::optional<std::uint64_t> saved) {
    if (!is_begun && setup_.ranks.are_several())
      state_.set_rank_seed(setup_.ranks.of_first(saved.value_or(seed_of_cpu())));
  };
  if (!beginning_) return agree_on_seed({});
  if (progress_.in_epoch) {
    if (!setup_.network.module->is_training()) setup_.network.module->train();
    tell_epoch_begin();
  }
  const at::NoGradGuard no_grad;
  set_gradients(*beginning_, *setup_.network.module);
  for (at::Tensor* sum : {&progress_.window.loss, &progress_.window.correct})
    if (sum->defined()) *sum = sum->to(options_.device);
  // The sums of an open step are in those of rank 0.
  if (!setup_.ranks.is_first() && progress_.window.loss.defined()) {
    for (at::Tensor* sum : {&progress_.window.loss, &progress_.window.correct})
      if (sum->defined()) *sum = at::zeros_like(*sum);
    progress_.window.examples = 0;
  }
  if (beginning_->random) beginning_->random();
  agree_on_seed(beginning_->rank_seed);
  beginning_.reset();
  if (progress_.steps_since_read == 0) read();  // a run that had to be given up is given up again
}

// The record of one step for the callbacks.
struct Run::Told {
  StepMetrics step;
  int64_t examples = 0;  // of the epoch so far
};

bool Run::advance(int64_t steps) {
  const int64_t most = std::numeric_limits<int64_t>::max() - progress_.step;
  try {
    return go_on(progress_.step + std::min(steps, most));
  } catch (const DeviceError& error) {
    keep_after_exception();
    const std::string last = state_.last_checkpoint();
    if (last.empty()) throw;
    throw DeviceError({.what = error.what(), .advice = last});
  } catch (...) {
    keep_after_exception();
    throw;
  }
}

// Steps that have not been read yet belong to the history, too. No callback is told, since one of
// them may be what has thrown.
void Run::keep_after_exception() {
  try {
    taken_from_device();
    state_.save_after_exception(stage_);
  } catch (...) {  // NOLINT(bugprone-empty-catch): the device or the disk is what has failed; the
                   // first exception says so
  }
}

bool Run::go_on(int64_t until) {
  const FlushSubnormals flush(options_.flush_subnormals && options_.device.is_cpu());
  const BackendsGuard backends(backends_in(setup_.precision, options_.backends));
  const LowPrecisionGrads gradients(options_);
  begin();
  while (progress_.in_epoch || (progress_.epochs_begun < epochs_ && !is_over())) {
    if (!progress_.in_epoch) {
      if (progress_.step >= until) return true;
      begin_epoch();
    }
    if (!train_epoch(until)) return true;
    end_epoch();
  }
  if (!std::exchange(ended_, true)) {
    History& history = progress_.history;
    if (!history.failed)
      history.failed = ended_badly(history, progress_.bad_steps_in_a_row, options_.give_up_after,
                                   setup_.precision);
    if (state_.is_due_at_end()) save();
  }
  state_.finish();
  return false;
}

void Run::begin_epoch() {
  if (!setup_.network.module->is_training()) setup_.network.module->train();
  progress_.epoch = EpochRecord{.epoch = ++progress_.epochs_begun};
  progress_.position = 0;
  progress_.in_epoch = true;
  progress_.correct = 0;
  progress_.loss_sum = 0;
  phases_before_ = {};
  timer_.reset();
  tell_epoch_begin();
}

void Run::tell_epoch_begin() {
  const int64_t steps = steps_of(training_.batches(), options_.accumulate);
  for (const auto& callback : setup_.callbacks)
    callback->on_epoch_begin(progress_.epoch.epoch, epochs_, steps);
}

// Goes on with the epoch until the run's step `until` is done; whether the epoch's last is.
bool Run::train_epoch(int64_t until) {
  const int64_t batches = training_.batches();
  is_counting_ = true;
  counted_ = window_start_ = Clock::now();
  waited_before_ = timer_.spent(Phase::data);
  while (progress_.position < batches && progress_.step < until && !is_over()) {
    const bool step_done = train_batch();
    const bool last = progress_.position == batches;
    const bool first_word = progress_.step == kFirstSteps && options_.give_up_after > 0;
    if (last || first_word || progress_.steps_since_read >= options_.read_every) read();
    const bool due = state_.is_due_after_batch(step_done);
    if (due && !progress_.history.failed) save();
    if (is_told_to_stop(step_done)) progress_.history.stopped = true;
  }
  const bool whole = progress_.position == batches || is_over();
  if (whole) {
    const History& history = progress_.history;
    if (history.stopped || history.failed || progress_.position < batches) keep_open_epoch();
    read();
  }
  profile::synchronize(options_.device);
  timer_.pause();
  count_seconds();
  is_counting_ = false;
  return whole;
}

// With several ranks, all know it from agree_on_step().
bool Run::is_told_to_stop(bool step_done) {
  if (setup_.ranks.are_several()) return step_done && std::exchange(stop_is_agreed_, false);
  return options_.should_stop && options_.should_stop();
}

// One batch; whether a step was taken after it.
bool Run::train_batch() {
  const bool opens_window = !progress_.window.loss.defined();
  if (opens_window) {
    setup_.ranks.seed(state_.rank_seed(), progress_.step);
    state_.begin_step();
  }
  timer_.enter(Phase::data);
  const data::Batch batch = data::to_device(
      training_.batch(progress_.epoch.epoch - 1, progress_.position), options_.device);
  stage_ = Stage::kInBatch;
  state_.has_changed();
  const int64_t next = progress_.position + 1;
  const bool ends_step = next == training_.batches() || next % options_.accumulate == 0;
  StepView view = view_of(batch, ends_step);
  for (const auto& callback : setup_.callbacks) callback->before_forward(view);
  const auto after_forward = [&](const at::Tensor& output) {
    for (const auto& callback : setup_.callbacks) callback->after_forward(view, output);
  };
  view.loss = add_batch(setup_, progress_.window, batch, ends_step, timer_,
                        {.after_forward = after_forward});
  for (const auto& callback : setup_.callbacks) callback->after_backward(view);
  if (ends_step) {
    agree_on_step();
    take_step(view);
  }
  progress_.position = next;
  stage_ = Stage::kBetweenBatches;
  return ends_step;
}

StepView Run::view_of(const data::Batch& batch, bool ends_step) {
  return {.epoch = progress_.epoch.epoch,
          .step = progress_.step + 1,
          .ends_step = ends_step,
          .batch = batch,
          .network = setup_.network,
          .optimizers = options_.optimizers,
          .scaler = setup_.scaler,
          .precision = setup_.precision,
          .loss = {},
          .repeat = [this, &batch](const RepeatOptions& how) {
            return repeat_batch(setup_, batch, how);
          }};
}

// The step's sums are those of all ranks from here on. Nothing is sent between here and the next
// backward, so what a rank does alone in between (an exception, a checkpoint) needs no other one.
void Run::agree_on_step() {
  if (!setup_.ranks.are_several()) return;
  UnreadStep& window = progress_.window;
  const bool stop = options_.should_stop && options_.should_stop();
  const bool counts = window.correct.defined();
  const bool save = state_.asks_to_save();
  const std::vector<double> all = setup_.ranks.totals(
      {stop ? 1.0 : 0.0, static_cast<double>(window.examples), window.loss.item<double>(),
       counts ? static_cast<double>(window.correct.item<int64_t>()) : 0.0, save ? 1.0 : 0.0});
  state_.agree_to_save(all[4] > 0);
  stop_is_agreed_ = all[0] > 0;
  window.examples = static_cast<int64_t>(all[1]);
  window.loss = at::scalar_tensor(all[2], at::kDouble);
  if (counts) window.correct = at::scalar_tensor(static_cast<int64_t>(all[3]), at::kLong);
}

void Run::take_step(const StepView& view) {
  stage_ = Stage::kInUpdate;
  timer_.enter(Phase::step);
  UnreadStep& window = progress_.window;
  window.record.epoch = progress_.epoch.epoch;
  window.record.step = ++progress_.step;
  window.record.learning_rate = learning_rate(*options_.optimizers.front());
  window.results = update(setup_, timer_);
  timer_.enter(Phase::other);
  for (const auto& callback : setup_.callbacks) callback->after_update(view);
  count_window_seconds();
  unread_.push_back(std::exchange(window, {}));
  ++progress_.steps_since_read;
}

void Run::count_window_seconds() {
  const auto now = Clock::now();
  const auto waited = timer_.spent(Phase::data);
  StepMetrics& record = progress_.window.record;
  record.seconds += std::chrono::duration<double>(now - window_start_).count();
  record.data_seconds += (waited - waited_before_).count();
  window_start_ = now;
  waited_before_ = waited;
}

// Until now, for the epoch and for an open window.
void Run::count_seconds() {
  const auto now = Clock::now();
  if (progress_.window.loss.defined()) count_window_seconds();
  progress_.epoch.seconds += std::chrono::duration<double>(now - counted_).count();
  counted_ = now;
  for (std::size_t i = 0; i < profile::kPhaseNames.size(); ++i)
    progress_.epoch.phase_seconds[i] =
        phases_before_[i] + timer_.spent(static_cast<Phase>(i)).count();
}

// The steps that were not read, with one copy from the device for all of them, put into the
// history.
std::vector<Run::Told> Run::taken_from_device() {
  std::vector<Told> told;
  if (unread_.empty()) return told;
  std::vector<at::Tensor> losses, corrects;
  for (const UnreadStep& step : unread_) {
    losses.push_back(step.loss);
    if (step.correct.defined()) corrects.push_back(step.correct);
  }
  const at::Tensor loss = at::stack(losses).to(c10::kCPU, c10::kDouble);
  const at::Tensor correct = corrects.empty() ? at::Tensor() : at::stack(corrects).to(c10::kCPU);
  const bool scaled = setup_.scaler.is_enabled();
  History& history = progress_.history;
  for (std::size_t i = 0; i < unread_.size(); ++i) {
    UnreadStep& step = unread_[i];
    StepMetrics& record = step.record;
    const double examples = static_cast<double>(step.examples);
    const double loss_sum = loss[static_cast<int64_t>(i)].item<double>();
    record.loss = loss_sum / examples;
    if (correct.defined()) {
      const int64_t right = correct[static_cast<int64_t>(i)].item<int64_t>();
      record.accuracy = static_cast<double>(right) / examples;
      progress_.correct += right;
    }
    add_results(step.results, scaled, record);
    progress_.loss_sum += loss_sum;
    progress_.epoch.examples += step.examples;
    history.skipped_steps += record.skipped;
    // A scaler skips steps to find its scale; where there is none, a skipped step is a fault.
    const bool bad = !std::isfinite(record.loss) || (record.skipped && !scaled);
    progress_.bad_steps_in_a_row = bad ? progress_.bad_steps_in_a_row + 1 : 0;
    history.steps.push_back(record);
    told.push_back({record, progress_.epoch.examples});
  }
  unread_.clear();
  return told;
}

// The history and the callbacks have every step after this.
void Run::tell() {
  for (const Told& told : taken_from_device())
    for (const auto& callback : setup_.callbacks) callback->on_step(told.step, told.examples);
}

void Run::read() {
  tell();
  progress_.steps_since_read = 0;
  History& history = progress_.history;
  if (!history.failed)
    history.failed =
        hopeless(history, progress_.bad_steps_in_a_row, options_.give_up_after, setup_.precision);
}

void Run::end_epoch() {
  EpochRecord& epoch = progress_.epoch;
  const double examples = static_cast<double>(std::max<int64_t>(epoch.examples, 1));
  epoch.loss = progress_.loss_sum / examples;
  if (options_.loss.has_accuracy() && !options_.losses)
    epoch.accuracy = static_cast<double>(progress_.correct) / examples;
  const bool was_stopped = progress_.history.stopped;
  if (validation_ && !was_stopped && !progress_.history.failed) validate();
  if (progress_.history.stopped && !was_stopped && !state_.is_kept()) keep_open_epoch();
  close_epoch();
}

void Run::close_epoch() {
  History& history = progress_.history;
  const EpochRecord& epoch = progress_.epoch;
  const Evaluation* best = progress_.best();
  const bool is_best = epoch.validation && (!best || epoch.validation->better_than(*best));
  if (is_best) history.best_epoch = epoch.epoch;
  history.epochs.push_back(epoch);
  if (epoch.validation) judge_early_stopping();
  progress_.in_epoch = false;
  state_.has_changed();
  for (const auto& callback : setup_.callbacks) callback->on_epoch_end(epoch);
  const RunState::Due due = state_.due_after_epoch(epoch.epoch, is_best);
  if (due != RunState::Due::kNo) save(due == RunState::Due::kBest);
}

void Run::validate() {
  for (const auto& callback : setup_.callbacks) callback->on_evaluate_begin(progress_.epoch.epoch);
  const SwappedAverage average(setup_.average);  // given back also where evaluation throws
  Evaluation evaluation = evaluate(setup_.network, *validation_, evaluate_options(setup_));
  progress_.history.stopped = evaluation.stopped;
  if (!evaluation.stopped) progress_.epoch.validation = std::move(evaluation);
}

checkpoint::Checkpoint Run::checkpoint() {
  if (!state_.is_kept()) tell();
  return state_.checkpoint();
}

// The time that it takes is not the training's.
void Run::save(bool is_best) {
  tell();
  timer_.pause();
  state_.save(is_best);  // counts until here
  const auto saving = Clock::now() - counted_;
  counted_ += saving;
  window_start_ += saving;
}

void Run::keep_open_epoch() {
  tell();
  state_.keep_open_epoch();
}

}  // namespace demi::train
