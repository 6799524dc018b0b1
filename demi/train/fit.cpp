#include "demi/train/fit.h"

#include <ATen/Context.h>
#include <ATen/core/Generator.h>
#include <ATen/ops/scalar_tensor.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <c10/core/InferenceMode.h>
#include <fmt/format.h>
#include <torch/types.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <mutex>
#include <utility>

#include "demi/core/error.h"
#include "demi/core/flush_subnormals.h"
#include "demi/data/to_device.h"
#include "demi/loop/recorder.h"
#include "demi/loop/region.h"
#include "demi/train/training_step.h"
#include "demi/weights/weights.h"

namespace demi::train {
namespace {

using profile::Phase;

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
          .group = setup.ranks.group(),
          .graph = options.graph};
}

// The seed that torch::manual_seed set.
std::uint64_t seed_of_cpu() {
  at::Generator generator = at::globalContext().defaultGenerator(c10::kCPU);
  const std::lock_guard lock(generator.mutex());
  return generator.current_seed();
}

}  // namespace

Fit::Fit(Setup& setup, const data::Loader& training, const data::Loader* validation, int64_t epochs,
         std::optional<ResumePoint> resume_point)
    : setup_(setup),
      options_(setup.options),
      data_(setup, training, validation, epochs),
      resume_point_(std::move(resume_point)),
      state_(setup, progress_, [this] {
        if (is_counting_) count_seconds();
      }) {
  const EpochShape shape = data_.shape(options_);
  if (resume_point_) {
    check_resumed(setup, data_, resume_point_->progress);
    progress_ = std::move(resume_point_->progress);
    phases_before_ = progress_.epoch.phase_seconds;
    find_best_epoch();
    judge_early_stopping();
  }
  if (progress_.in_epoch)
    progress_.shape.batches = std::min(progress_.shape.batches, shape.batches);  // as it was begun
  else
    progress_.shape = shape;
  require_same_on_ranks(setup, data_, progress_);
  require_shared_examples(setup, data_);
  check_data(setup, data_);
  require_same_weights(setup, "where the training begins");
  for (const auto& optimizer : options_.optimizers) optimizer->zero_grad();
}

// A resumed run may have another rule.
void Fit::find_best_epoch() {
  History& history = progress_.history;
  const Evaluation* best = nullptr;
  history.best_epoch.reset();
  for (const EpochRecord& one : history.epochs) {
    if (!is_better(one, best)) continue;
    best = &*one.validation;
    history.best_epoch = one.epoch;
  }
}

bool Fit::is_better(const EpochRecord& epoch, const Evaluation* best) const {
  return epoch.validation && !std::isnan(epoch.validation->loss) &&
         (!best || epoch.validation->better_than(*best, options_.best_by));
}

void Fit::judge_early_stopping() {
  History& history = progress_.history;
  const int64_t best = history.best_epoch.value_or(0);
  const auto waited =
      std::count_if(history.epochs.begin(), history.epochs.end(),
                    [best](const EpochRecord& one) { return one.validation && one.epoch > best; });
  history.early_stopped = options_.early_stopping > 0 && waited >= options_.early_stopping;
}

bool Fit::is_over() const {
  const History& history = progress_.history;
  return history.stopped || history.failed || history.early_stopped ||
         (options_.max_steps > 0 && progress_.step >= options_.max_steps);
}

// Forwards the Step's events to the Trainer's observers; one may be added during a call.
class Fit::Relay final : public StepObserver {
 public:
  explicit Relay(Fit& fit) : fit_(fit) {}
  // Asks the watchers once a step.
  bool needs_step(int64_t step) override {
    if (std::exchange(asked_, step) == step) return needs_;
    needs_ = false;
    for (const Watcher& one : fit_.setup_.watchers) needs_ |= one.observer->needs_step(step);
    return needs_;
  }
  void before_forward(const StepView& view) override {
    for (const Watcher& one : fit_.setup_.watchers) one.observer->before_forward(view);
  }
  void after_forward(const StepView& view, const at::Tensor& output) override {
    for (const Watcher& one : fit_.setup_.watchers) one.observer->after_forward(view, output);
  }
  void after_backward(const StepView& view) override {
    for (const Watcher& one : fit_.setup_.watchers) one.observer->after_backward(view);
  }
  void after_update(const StepView& view) override { fit_.on_update(view); }

 private:
  Fit& fit_;
  int64_t asked_ = -1;
  bool needs_ = false;
};

// Makes a Step that records the Trainer's counts of a batch, and reads them when they are due.
void Fit::make_step() {
  schedules_ = setup_.schedules;
  step_.emplace(setup_.job(), loop::Options{.precision = setup_.precision,
                                            .device = options_.device,
                                            .op_policy = options_.op_policy,
                                            .accumulate = options_.accumulate,
                                            .clip_norm = options_.clip_norm,
                                            .guard_statistics = setup_.scaler.is_enabled() ||
                                                                setup_.has_norm_limit(),
                                            .read_every = 0,
                                            .steps_taken = progress_.step,
                                            .graph = options_.graph,
                                            .synchronise_phases = options_.synchronise_phases});
  step_->watch(relay_ = std::make_shared<Relay>(*this));
  state_.set_step(&*step_);
}

// Loads the step's sums, gradients and random numbers of a resumed run. They are not loaded before,
// since making the loaders may have drawn random numbers.
void Fit::begin() {
  const bool is_begun = std::exchange(is_begun_, true);
  const auto agree_on_seed = [&](std::optional<std::uint64_t> saved) {
    if (!is_begun && setup_.ranks.are_several())
      state_.set_rank_seed(setup_.ranks.of_first(saved.value_or(seed_of_cpu())));
  };
  if (!resume_point_) return agree_on_seed({});
  if (progress_.in_epoch) {
    if (!setup_.network.module->is_training()) setup_.network.module->train();
    tell_epoch_begin();
  }
  const at::NoGradGuard no_grad;
  set_gradients(*resume_point_, setup_);
  if (progress_.window.is_open())
    step_->reopen(resume_point_->statistics, progress_.position % options_.accumulate);
  // The sums of an open step are in those of rank 0.
  const bool holds_window = setup_.ranks.is_first();
  loop::Sums& sums = progress_.window.sums;
  loop::each_sum(sums, [&](const char*, at::Tensor& sum) {
    if (sum.defined()) sum = holds_window ? sum.to(options_.device) : at::zeros_like(sum);
  });
  if (!holds_window) sums.examples = 0;
  step_->recorder().window() = progress_.window;
  if (resume_point_->random) resume_point_->random();
  agree_on_seed(resume_point_->rank_seed);
  resume_point_.reset();
  if (progress_.steps_since_read == 0) read();  // a run that had to be given up is given up again
}

// The record of one step for the callbacks.
struct Fit::StepReport {
  StepMetrics step;
  int64_t examples = 0;  // of the epoch so far
};

// Adds the steps that have not been read yet to the history, and saves. No callback is called,
// since one of them may have thrown.
void Fit::keep_after_exception(bool warns) {
  try {
    count_step();
    read_records();
    state_.save_after_exception(stage_);
  } catch (const TrainingError& error) {
    if (warns && options_.checkpoints.retry_seconds == 0) {  // else it was warned of
      TORCH_WARN("[train.Trainer] the state from before an exception could not be saved: ",
                 error.what());
    }
  } catch (...) {  // NOLINT(bugprone-empty-catch): the device or the disk is what has failed; the
                   // first exception says so
  }
}

bool Fit::advance(int64_t steps) try {
  const int64_t until =
      progress_.step + std::min(steps, std::numeric_limits<int64_t>::max() - progress_.step);
  setup_.require_weights_in_place();
  // The caller's inference mode and regions do not apply to the run.
  const c10::InferenceMode with_gradients(false);
  const loop::OutsideRegions outside(options_.device);
  const FlushSubnormals flush(options_.flush_subnormals && options_.device.is_cpu());
  const BackendsGuard backends(loop::backends_in(setup_.precision, options_.backends));
  if (!step_) make_step();
  begin();
  while (progress_.in_epoch || (progress_.epochs_begun < data_.epochs && !is_over())) {
    if (!progress_.in_epoch) {
      if (progress_.step >= until) return true;
      begin_epoch();
    }
    start_counting();
    while (has_batch() && progress_.step < until) after_batch(train_batch());
    const bool whole = !has_batch();
    if (whole) read_whole_epoch();
    stop_counting();
    if (!whole) return true;
    end_epoch();
  }
  end();
  return false;
} catch (const DeviceError& error) {
  keep_after_exception(/*warns=*/true);
  const std::string last = state_.last_checkpoint();
  if (last.empty()) throw;
  throw DeviceError({.what = error.what(), .advice = last});
} catch (const TrainingError&) {  // of a save, perhaps
  keep_after_exception(/*warns=*/false);
  throw;
} catch (...) {
  keep_after_exception(/*warns=*/true);
  throw;
}

void Fit::end() {
  if (!std::exchange(ended_, true)) {
    History& history = progress_.history;
    if (!history.failed)
      history.failed = why_failed(history, bad_steps(), options_.give_up_after, setup_.precision);
    if (state_.is_due_at_end()) save();
  }
  state_.finish();
}

void Fit::begin_epoch() {
  if (!setup_.network.module->is_training()) setup_.network.module->train();
  progress_.epoch = EpochRecord{.epoch = ++progress_.epochs_begun};
  progress_.shape = data_.shape(options_);
  progress_.position = 0;
  progress_.in_epoch = true;
  progress_.correct = progress_.answers = 0;
  progress_.loss_sum = 0;
  phases_before_ = {};
  timer().reset();
  tell_epoch_begin();
}

void Fit::tell_epoch_begin() {
  const int64_t steps = steps_of(progress_.shape.batches, options_.accumulate);
  for (const Watcher& one : setup_.watchers)
    if (one.callback) one.callback->on_epoch_begin(progress_.epoch.epoch, data_.epochs, steps);
}

// Whether the epoch has another batch, in a run that is not over.
bool Fit::has_batch() const { return progress_.position < progress_.shape.batches && !is_over(); }

void Fit::start_counting() {
  is_counting_ = true;
  counted_ = Clock::now();
  step_->recorder().start_clock();
}

void Fit::stop_counting() {
  setup_.graphs = step_->graph_counts();
  profile::synchronize(options_.device);
  timer().pause();
  count_seconds();
  is_counting_ = false;
}

void Fit::after_batch(bool step_done) {
  const bool last = progress_.position == progress_.shape.batches;
  const bool first_word = progress_.step == kFirstSteps && options_.give_up_after > 0;
  if (last || first_word || progress_.steps_since_read >= options_.read_every) read();
  const bool due = state_.is_due_after_batch(step_done, last);
  if (due && !progress_.history.failed) save();
  if (is_told_to_stop(step_done)) progress_.history.stopped = true;
}

void Fit::read_whole_epoch() {
  const History& history = progress_.history;
  if (history.stopped || history.failed || progress_.position < progress_.shape.batches)
    keep_open_epoch();
  read();
}

// Several ranks know it from agree_on_step().
bool Fit::is_told_to_stop(bool step_done) {
  if (setup_.ranks.are_several()) return step_done && std::exchange(stop_is_agreed_, false);
  return options_.should_stop && options_.should_stop();
}

// Whether the next batch is the last of its step.
bool Fit::ends_step() const {
  const int64_t next = progress_.position + 1;
  return next == progress_.shape.batches || next % options_.accumulate == 0;
}

// Passes over a batch that this rank does not have and others do: it takes their step.
bool Fit::pass_without_batch() {
  stage_ = Stage::kInBatch;
  state_.has_changed();
  const bool steps = ends_step();
  if (steps) step_->pass({.last = true, .epoch = progress_.epoch.epoch});
  return end_batch(steps);
}

// `steps`: a step is taken after the batch. Returns that.
bool Fit::end_batch(bool steps) {
  if (steps) {
    agree_on_step();
    take_step();
  } else {
    ++progress_.position;
  }
  stage_ = Stage::kBetweenBatches;
  return steps;
}

// The loader's choice of a batch, if the step's work may make the batch of it: nobody sees its
// tensors.
at::Tensor Fit::next_choice() {
  if (options_.graph == loop::GraphMode::off || options_.losses) return {};
  if (!step_->graph_counts().refusal.empty() || relay_->needs_step(progress_.step + 1)) return {};
  return choice_on(options_.device, data_.training, progress_.epoch.epoch - 1, progress_.position);
}

// Forward and backward of the next batch; its part of the sums.
loop::Sums Fit::train_next(bool ends_step) {
  timer().enter(Phase::data);
  const data::Loader& loader = data_.training;
  loop::MicroBatch how{.last = ends_step, .epoch = progress_.epoch.epoch};
  const at::Tensor choice = next_choice();
  data::Batch batch;
  if (!choice.defined())
    batch = data::to_device(loader.batch(how.epoch - 1, progress_.position), options_.device);
  stage_ = Stage::kInBatch;
  state_.has_changed();
  if (!choice.defined()) {
    how.inputs = inputs_of(batch);
    how.weight = share_of(setup_, batch);
  }
  loop::Sums sums = choice.defined() ? train_on(setup_, *step_, loader, choice, how)
                                     : train_on(setup_, *step_, batch, how);
  ++batches_in_step_;
  shares_in_step_ += how.weight;
  return sums;
}

// Trains on a batch. Returns whether a step was taken after it.
bool Fit::train_batch() {
  if (progress_.position % options_.accumulate == 0) {  // the first of its step
    batches_in_step_ = shares_in_step_ = 0;
    setup_.ranks.seed(state_.rank_seed(), progress_.step);
    state_.begin_step();
  }
  if (progress_.position >= data_.training.batches()) return pass_without_batch();
  const bool steps = ends_step();
  step_->recorder().window().sums.add(train_next(steps));
  return end_batch(steps);
}

// Makes the step's sums those of all ranks. Nothing is sent between here and the next backward, so
// an action of one rank in between (an exception, a checkpoint) needs no other one.
void Fit::agree_on_step() {
  if (!setup_.ranks.are_several()) return;
  loop::Sums& sums = step_->recorder().window().sums;
  const bool stop = options_.should_stop && options_.should_stop();
  const bool save = state_.asks_to_save();
  // All ranks send equally many numbers: a rank without a batch has no sums.
  std::vector<double> numbers{stop ? 1.0 : 0.0, save ? 1.0 : 0.0,
                              static_cast<double>(sums.examples), batches_in_step_,
                              shares_in_step_};
  loop::each_sum(sums, [&](const char*, const at::Tensor& sum) {
    numbers.push_back(sum.defined() ? 1.0 : 0.0);
    numbers.push_back(sum.defined() ? sum.item<double>() : 0.0);
  });
  const std::vector<double> all = setup_.ranks.totals(std::move(numbers));
  stop_is_agreed_ = all[0] > 0;
  state_.agree_to_save(all[1] > 0);
  sums.examples = static_cast<int64_t>(all[2]);
  // Turns means over batches with ignored targets into the mean over all targets that are not
  // ignored.
  if (all[4] > 0 && all[3] != all[4]) scale_gradients(setup_, all[3] / all[4]);
  auto next = all.begin() + 5;
  loop::each_sum(sums, [&next](const char*, at::Tensor& sum) {
    const bool is_there = *next++ > 0;
    const double total = *next++;
    if (is_there) sum = at::scalar_tensor(total, at::kDouble);
  });
}

void Fit::take_step() {
  stage_ = Stage::kInUpdate;
  step_->finish();
  count_step();  // one that was replayed has told nobody
}

// Copies of weights that a region of the caller's would keep until it ends.
static void drop_copies() {
  if (weights::mode() == weights::Mode::region) weights::drop();
}

// A step that the Step has taken, also where a schedule or a callback threw after it.
void Fit::count_step() {
  if (!step_ || step_->steps_taken() == progress_.step) return;
  drop_copies();
  ++progress_.step;
  ++progress_.position;
  ++progress_.steps_since_read;
}

void Fit::on_update(const StepView& view) {
  count_step();
  for (const Watcher& one : setup_.watchers) one.observer->after_update(view);
}

// Counts the seconds until now, for the epoch and for an open window.
void Fit::count_seconds() {
  progress_.window = step_->recorder().window_until_now();
  const auto now = Clock::now();
  progress_.epoch.seconds += std::chrono::duration<double>(now - counted_).count();
  counted_ = now;
  for (std::size_t i = 0; i < profile::kPhaseNames.size(); ++i)
    progress_.epoch.phase_seconds[i] =
        phases_before_[i] + timer().spent(static_cast<Phase>(i)).count();
}

// The steps that were not read, put into the history.
std::vector<Fit::StepReport> Fit::read_records() {
  std::vector<StepReport> reports;
  if (!step_ || step_->recorder().unread() == 0) return reports;
  History& history = progress_.history;
  for (const loop::ReadStep& step : step_->recorder().read()) {
    const StepMetrics& record = step.metrics;
    progress_.correct += static_cast<int64_t>(step.correct);
    progress_.answers += static_cast<int64_t>(step.answers);
    progress_.loss_sum += step.loss;
    progress_.epoch.examples += step.examples;
    history.skipped_steps += record.skipped;
    const bool bad = is_bad(record, std::isfinite(step.judged), setup_.scaler.options());
    progress_.bad_steps_in_a_row = bad ? progress_.bad_steps_in_a_row + 1 : 0;
    if (progress_.bad_steps_in_a_row == 1) progress_.first_bad = record;
    history.steps.push_back(record);
    reports.push_back({record, progress_.epoch.examples});
  }
  history.forget_all_but(options_.history_steps);
  return reports;
}

void Fit::add_earlier(std::vector<StepMetrics> earlier) {
  std::vector<StepMetrics>& steps = progress_.history.steps;
  if (earlier.empty()) return;
  if (steps.empty() || earlier.back().step + 1 != steps.front().step)
    throw UsageError({.where = "train.Trainer.Parts.add_earlier",
                      .what = "the steps do not end right before the history",
                      .seen = fmt::format("the last one is step {}", earlier.back().step),
                      .accepted = steps.empty() ? "none, since the history is empty"
                                                : fmt::format("step {}", steps.front().step - 1)});
  earlier.insert(earlier.end(), steps.begin(), steps.end());
  steps = std::move(earlier);
  progress_.history.forget_all_but(options_.history_steps);
}

// The history and the callbacks have every step after this.
void Fit::report() {
  for (const StepReport& told : read_records())
    for (const Watcher& one : setup_.watchers) one.observer->on_step(told.step, told.examples);
}

void Fit::read() {
  report();
  progress_.steps_since_read = 0;
  History& history = progress_.history;
  if (!history.failed)
    history.failed = why_give_up(history, bad_steps(), options_.give_up_after, setup_.precision);
}

void Fit::end_epoch() {
  EpochRecord& epoch = progress_.epoch;
  const double answers = static_cast<double>(progress_.answers);
  epoch.loss = progress_.loss_sum / answers;  // NaN of none
  if (options_.loss.has_accuracy() && !options_.losses && answers > 0)
    epoch.accuracy = static_cast<double>(progress_.correct) / answers;
  warn_of_lost_mean();
  const bool was_stopped = progress_.history.stopped;
  if (!progress_.history.failed)
    require_same_weights(setup_, fmt::format("at the end of epoch {}", epoch.epoch));
  if (data_.validation && !was_stopped && !progress_.history.failed) validate();
  if (progress_.history.stopped && !was_stopped && !state_.is_kept()) keep_open_epoch();
  close_epoch();
}

// Warns if the epoch's mean loss is not finite. One example with a NaN is enough for that, and
// changes no weight if its step is skipped: such a run succeeds without another message.
void Fit::warn_of_lost_mean() {
  const EpochRecord& epoch = progress_.epoch;
  const History& history = progress_.history;
  if (std::isfinite(epoch.loss) || progress_.answers == 0 || history.failed ||
      !setup_.ranks.is_first() || std::exchange(has_warned_, true))
    return;
  const StepMetrics& oldest = history.steps.front();
  const bool has_all = oldest.step == 1 || oldest.epoch < epoch.epoch;
  int64_t steps = 0, lost = 0, first = 0;
  for (const StepMetrics& step : history.steps) {
    if (step.epoch != epoch.epoch) continue;
    ++steps;
    if (std::isfinite(step.loss)) continue;
    if (lost++ == 0) first = step.step;
  }
  TORCH_WARN("[train.Trainer] the mean loss of epoch ", epoch.epoch, " is ",
             std::isnan(epoch.loss) ? std::string("nan") : std::to_string(epoch.loss),
             ": so is the loss of ", lost, " of its ", has_all ? "" : "last ", steps,
             " steps, first in step ", first, "; look for NaN and Inf in the examples of that step",
             options_.gradient_penalty > 0 ? ", or for a gradient penalty that overflows" : "");
}

void Fit::close_epoch() {
  History& history = progress_.history;
  const EpochRecord& epoch = progress_.epoch;
  const bool is_best = is_better(epoch, progress_.best());
  if (is_best) history.best_epoch = epoch.epoch;
  history.epochs.push_back(epoch);
  if (epoch.validation) judge_early_stopping();
  progress_.in_epoch = false;
  state_.has_changed();
  for (const Watcher& one : setup_.watchers)
    if (one.callback) one.callback->on_epoch_end(epoch);
  const FitState::Due due = state_.due_after_epoch(epoch.epoch, is_best);
  if (due != FitState::Due::kNo) save(due == FitState::Due::kBest);
}

void Fit::validate() {
  for (const Watcher& one : setup_.watchers)
    if (one.callback) one.callback->on_evaluate_begin(progress_.epoch.epoch);
  std::optional<EMA::InPlace> averages;  // the weights come back also where evaluation throws
  if (setup_.average) {
    averages.emplace(*setup_.average);
    drop_copies();
  }
  if (!evaluator_)
    evaluator_.emplace(setup_.network, *data_.validation, evaluate_options(setup_), *step_);
  Evaluation evaluation = evaluator_->evaluate();
  averages.reset();
  drop_copies();
  progress_.history.stopped = evaluation.stopped;
  if (!evaluation.stopped) progress_.epoch.validation = std::move(evaluation);
}

checkpoint::Checkpoint Fit::checkpoint() {
  if (!state_.is_kept()) report();
  return state_.checkpoint();
}

// The time that it takes is not the training's.
void Fit::save(bool is_best) {
  report();
  timer().pause();
  state_.save(is_best);  // counts until here
  const auto saving = Clock::now() - counted_;
  counted_ += saving;
  step_->recorder().leave_out(saving);
}

void Fit::keep_open_epoch() {
  report();
  state_.keep_open_epoch();
}

}  // namespace demi::train
