#include "demi/train/run.h"

#include <ATen/Context.h>
#include <ATen/core/Generator.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/full.h>
#include <ATen/ops/scalar_tensor.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros_like.h>
#include <fmt/format.h>
#include <torch/types.h>
#include <torch/version.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <filesystem>
#include <limits>
#include <map>
#include <mutex>
#include <string>
#include <string_view>
#include <utility>

#include "demi/checkpoint/manifest.h"
#include "demi/checkpoint/prepared_state.h"
#include "demi/checkpoint/random_state.h"
#include "demi/core/error.h"
#include "demi/core/flush_subnormals.h"
#include "demi/core/version.h"
#include "demi/data/to_device.h"
#include "demi/train/agreement.h"
#include "demi/train/evaluate.h"
#include "demi/train/forward.h"
#include "demi/train/verdict.h"

namespace demi::train {
namespace {

using profile::Phase;

constexpr std::string_view kGradient = "gradient/";
constexpr auto kRankSeed = "ranks/seed";

double learning_rate(const torch::optim::Optimizer& optimizer) {
  return optimizer.param_groups().front().options().get_lr();
}

std::map<std::string, at::Tensor> parameters_of(const torch::nn::Module& module) {
  std::map<std::string, at::Tensor> all;
  for (const auto& parameter : module.named_parameters()) all[parameter.key()] = parameter.value();
  return all;
}

// In the parameter's layout, as backward makes gradients: sums over them keep their order.
at::Tensor gradient_like(const at::Tensor& parameter, const at::Tensor& value) {
  return at::empty_like(parameter,
                        parameter.options().dtype(value.scalar_type()).requires_grad(false))
      .copy_(value);
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

// With several ranks, those other than the first save nothing.
CheckpointOptions checkpoints_of(const Setup& setup) {
  return setup.ranks.is_first() ? setup.options.checkpoints : CheckpointOptions();
}

}  // namespace

Beginning read_beginning(checkpoint::Checkpoint& from, Setup& setup) {
  Beginning beginning{
      .progress = read_progress(from), .gradients = {}, .rank_seed = {}, .random = {}};
  if (const auto seed = from.state.extract(kRankSeed); !seed.empty())
    beginning.rank_seed = std::bit_cast<std::uint64_t>(seed.mapped().item<int64_t>());
  const auto parameters = parameters_of(*setup.network.module);
  const at::NoGradGuard no_grad;
  for (auto& [name, saved] : checkpoint::take_part(from.state, kGradient)) {
    const auto parameter = parameters.find(name);
    if (parameter == parameters.end() || parameter->second.sizes() != saved.sizes() ||
        !saved.is_floating_point())
      throw UsageError({.where = "train.Trainer.resume",
                        .what = "a gradient in the checkpoint is that of another model",
                        .seen = c10::str(name, " ", saved.sizes()),
                        .accepted = "names and shapes of this module's parameters"});
    beginning.gradients[name] = gradient_like(parameter->second, std::exchange(saved, {}));
  }
  return beginning;
}

Run::Run(Setup& setup, const data::Loader& training, const data::Loader* validation, int64_t epochs,
         std::optional<Beginning> beginning)
    : setup_(setup),
      options_(setup.options),
      training_(training),
      validation_(validation),
      epochs_(epochs),
      beginning_(std::move(beginning)),
      timer_(setup.options.device, setup.options.synchronise_phases),
      saves_(checkpoints_of(setup), setup.options.should_save) {
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
  const TrainerOptions& o = options_;
  std::string text = fmt::format(
      "epochs {}\nmax_steps {}\nprecision {}\nautocast {}\nlabel_smoothing {}\nclip_norm {}\n"
      "accumulate {}\nema_decay {}\nearly_stopping {}\nread_every {}\ngive_up_after {}\n"
      "optimizers {}\nschedule {}\nmomentum_schedule {}\nlosses {}\nflush_subnormals {}\n",
      epochs_, o.max_steps, setup_.precision.name, o.autocast, o.label_smoothing, o.clip_norm,
      o.accumulate, o.ema_decay, o.early_stopping, o.read_every, o.give_up_after,
      o.optimizers.size(), o.schedule ? "given" : "none", o.momentum_schedule ? "given" : "none",
      o.losses ? "given" : "none", o.flush_subnormals);
  text += agreement_on(o.op_policy);
  for (const auto& optimizer : o.optimizers)
    text += fmt::format("learning rate {}\n", learning_rate(*optimizer));
  for (std::size_t i = 0; i < o.optimizers.size(); ++i)
    text += agreement_on(*o.optimizers[i], fmt::format("optimizer {}", i));
  text += agreement_on(setup_.scaler.options());
  for (const auto& [name, number] : setup_.scaler.state_dict())
    text += fmt::format("scaler: {} {}\n", name, number);
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
      rank_seed_ = setup_.ranks.of_first(saved.value_or(seed_of_cpu()));
  };
  if (!beginning_) return agree_on_seed({});
  if (progress_.in_epoch) {
    if (!setup_.network.module->is_training()) setup_.network.module->train();
    tell_epoch_begin();
  }
  const at::NoGradGuard no_grad;
  for (auto& [name, parameter] : parameters_of(*setup_.network.module)) {
    const auto saved = beginning_->gradients.find(name);
    if (saved != beginning_->gradients.end()) parameter.mutable_grad() = saved->second;
  }
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
    const std::string last = last_checkpoint();
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
    save_after_exception();
  } catch (...) {  // NOLINT(bugprone-empty-catch): the device or the disk is what has failed; the
                   // first exception says so
  }
}

// Where ranks go on that have lost one. Nothing for one process, and without a folder.
std::string Run::last_checkpoint() const {
  const std::filesystem::path& folder = options_.checkpoints.folder;
  if (!setup_.ranks.are_several() || folder.empty()) return {};
  for (int attempt = 0; attempt < 3; ++attempt) {
    try {
      const std::filesystem::path last = checkpoint::find(folder);
      const int64_t step = checkpoint::read_manifest(last).step;
      const char* newer =
          setup_.ranks.is_first() ? "" : ", unless rank 0 saves another one as it ends";
      return fmt::format("the last checkpoint is that of step {}, {}{}", step, last.string(),
                         newer);
    } catch (const DataError&) {  // NOLINT(bugprone-empty-catch): none, or rank 0 removes it now
    }
  }
  return "no checkpoint has been saved yet";
}

bool Run::go_on(int64_t until) {
  const FlushSubnormals flush(options_.flush_subnormals && options_.device.is_cpu());
  const BackendsGuard backends(backends_in(setup_.precision, options_.backends));
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
    const bool due = saves_.is_on() && !saved_ && !history.failed && !history.steps.empty();
    if (of_saving_rank(due) != 0) save();
  }
  saves_.finish();
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
    const bool due = is_due_after_batch(step_done);
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

// Ranks that share the optimizers' states save together, and know it from agree_on_step().
bool Run::is_due_after_batch(bool step_done) {
  if (!setup_.shards.empty()) return step_done && std::exchange(save_is_agreed_, false);
  return saves_.is_due_after_batch(progress_.step, step_done);
}

// What rank 0 says of saving, if all ranks have to take part in it.
int64_t Run::of_saving_rank(int64_t number) const {
  if (setup_.shards.empty()) return number;
  return static_cast<int64_t>(setup_.ranks.of_first(static_cast<std::uint64_t>(number)));
}

// One batch; whether a step was taken after it.
bool Run::train_batch() {
  const bool opens_window = !progress_.window.loss.defined();
  if (opens_window) setup_.ranks.seed(rank_seed_, progress_.step);
  if (opens_window && saves_.is_on()) window_random_ = checkpoint::random_states();
  timer_.enter(Phase::data);
  const data::Batch batch = data::to_device(
      training_.batch(progress_.epoch.epoch - 1, progress_.position), options_.device);
  stage_ = Stage::kInBatch;
  saved_ = false;
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
  const bool save = !setup_.shards.empty() && saves_.is_due_after_batch(progress_.step + 1, true);
  const std::vector<double> all = setup_.ranks.totals(
      {stop ? 1.0 : 0.0, static_cast<double>(window.examples), window.loss.item<double>(),
       counts ? static_cast<double>(window.correct.item<int64_t>()) : 0.0, save ? 1.0 : 0.0});
  save_is_agreed_ = all[4] > 0;
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
  if (progress_.history.stopped && !was_stopped && !kept_) keep_open_epoch();
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
  if (!kept_) saved_ = false;
  for (const auto& callback : setup_.callbacks) callback->on_epoch_end(epoch);
  enum Due : int64_t { kNo, kLast, kBest };
  const bool best_due = saves_.is_on() && saves_.keeps_best() && is_best;
  const bool last_due = !kept_ && saves_.is_due_after_epoch(epoch.epoch);
  const int64_t due = of_saving_rank(best_due ? kBest : last_due ? kLast : kNo);
  if (due != kNo) save(due == kBest);
}

void Run::validate() {
  for (const auto& callback : setup_.callbacks) callback->on_evaluate_begin(progress_.epoch.epoch);
  const SwappedAverage average(setup_.average);  // given back also where evaluation throws
  Evaluation evaluation = evaluate(setup_.network, *validation_, evaluate_options(setup_));
  progress_.history.stopped = evaluation.stopped;
  if (!evaluation.stopped) progress_.epoch.validation = std::move(evaluation);
}

checkpoint::Checkpoint Run::checkpoint() {
  if (kept_) return *kept_;
  tell();
  return captured();
}

// Steps that were not read are not in it: tell() before.
checkpoint::Checkpoint Run::captured() {
  if (is_counting_) count_seconds();
  for (const auto& shards : setup_.shards) shards->consolidate();
  if (!setup_.shards.empty() && !setup_.ranks.is_first()) return {};
  checkpoint::Checkpoint state = checkpoint::capture(setup_.objects());
  for (const auto& shards : setup_.shards) shards->release();  // `state` holds it
  if (progress_.window.loss.defined())
    for (const auto& [name, parameter] : parameters_of(*setup_.network.module))
      if (parameter.grad().defined())
        state.state[std::string(kGradient) + name] = parameter.grad().detach();
  write(progress_, state);
  if (setup_.ranks.are_several())
    state.state[kRankSeed] = at::full({1}, std::bit_cast<int64_t>(rank_seed_), at::kLong);
  add_texts(state.text);
  return state;
}

void Run::add_texts(checkpoint::Metadata& text) const {
  const History& history = progress_.history;
  text["demi.precision"] = setup_.precision.name;
  text["demi.epoch"] = std::to_string(progress_.epochs_begun);
  text["demi.step"] = std::to_string(progress_.step);
  text["demi.libtorch"] = TORCH_VERSION;
  text["demi.version"] = version();
  const auto add_accuracy = [&](const char* name, const Evaluation& evaluation) {
    if (evaluation.accuracy) text[name] = fmt::format("{}", *evaluation.accuracy);
  };
  for (const EpochRecord& epoch : history.epochs)
    if (epoch.validation) add_accuracy("demi.test_accuracy", *epoch.validation);
  if (const Evaluation* best = progress_.best()) add_accuracy("demi.best_accuracy", *best);
  for (const auto& [name, words] : options_.checkpoints.text) text[name] = words;
}

// The time that it takes is not the training's.
void Run::save(bool is_best) {
  tell();
  timer_.pause();
  const checkpoint::Checkpoint state = captured();  // counts until here
  if (saves_.is_on()) saves_.save(progress_.step, state, is_best);
  saved_ = true;
  const auto saving = Clock::now() - counted_;
  counted_ += saving;
  window_start_ += saving;
}

// Training ends within the epoch: what would go on is the state from before the epoch is closed.
void Run::keep_open_epoch() {
  tell();
  kept_ = captured();
  const bool due = saves_.is_on() && !saved_ && !progress_.history.failed;
  if (due) saves_.save(progress_.step, *kept_, /*is_best=*/false);
  saved_ |= due;
}

// A batch that was interrupted is repeated, with the whole step that it belongs to. An interrupted
// update is not saved, since it may have changed some of the weights. Nor is anything saved if the
// other ranks would have to send their share of the optimizers' states: what was saved before is
// what remains.
void Run::save_after_exception() {
  if (!setup_.shards.empty()) return saves_.finish();
  if (!saves_.is_on() || saved_ || progress_.step == 0 || stage_ == Stage::kInUpdate) return;
  checkpoint::Checkpoint state = captured();
  // Between the batches of a step, gradients are those of this rank alone.
  const bool is_open = setup_.ranks.are_several() && progress_.window.loss.defined();
  if (stage_ == Stage::kInBatch || is_open) {
    Progress start = progress_;
    start.position -= start.position % options_.accumulate;
    start.window = {};
    std::erase_if(state.state, [](const auto& item) {
      return item.first.starts_with(kGradient) || item.first.starts_with("window/");
    });
    write(start, state);
    for (const auto& [name, value] : window_random_) state.state[name] = value;
  }
  saves_.save(progress_.step, state, /*is_best=*/false);
  saves_.finish();
}

}  // namespace demi::train
