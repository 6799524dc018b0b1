#include "demi/train/progress.h"

#include <torch/types.h>

#include <algorithm>
#include <cstddef>
#include <string>
#include <vector>

#include "demi/core/error.h"
#include "demi/train/history_columns.h"

namespace demi::train {
namespace {

constexpr auto kResume = "train.Trainer.resume";
constexpr auto kProgress = "progress";

std::string phase_key(std::size_t phase) {
  return "epoch_seconds." + std::string(profile::kPhaseNames[phase]);
}

// Calls visit(name, number) for each of them, so that writing and reading cannot differ.
template <class Any, class Visit>
void each_count(Any& progress, const Visit& visit) {
  visit("epoch", progress.epochs_begun);
  visit("position", progress.position);
  visit("step", progress.step);
  visit("steps_since_read", progress.steps_since_read);
  visit("bad_steps_in_a_row", progress.bad_steps_in_a_row);
  visit("correct", progress.correct);
  visit("answers", progress.answers);
  visit("skipped_steps", progress.history.skipped_steps);
  visit("epoch_examples", progress.epoch.examples);
  visit("window_examples", progress.window.sums.examples);
  visit("batches", progress.shape.batches);
  visit("examples", progress.shape.examples);
  visit("accumulate", progress.shape.accumulate);
}

template <class Any, class Visit>
void each_number(Any& progress, const Visit& visit) {
  visit("loss_sum", progress.loss_sum);
  visit("epoch_seconds", progress.epoch.seconds);
  for (std::size_t i = 0; i < profile::kPhaseNames.size(); ++i)
    visit(phase_key(i), progress.epoch.phase_seconds[i]);
  visit("window_seconds", progress.window.seconds);
  visit("window_data_seconds", progress.window.data_seconds);
}

// The history need not hold it. Older versions did not write it: it is the oldest that they had.
void write_first_bad(const Progress& progress, StateDict& numbers) {
  if (progress.bad_steps_in_a_row == 0) return;
  const StepMetrics& first = progress.first_bad;
  numbers["first_bad.loss"] = first.loss;
  numbers["first_bad.learning_rate"] = first.learning_rate;
  if (first.loss_scale) numbers["first_bad.loss_scale"] = *first.loss_scale;
}

void read_first_bad(const StateDict& numbers, Progress& progress) {
  const int64_t bad = progress.bad_steps_in_a_row;
  const std::vector<StepMetrics>& steps = progress.history.steps;
  StepMetrics& first = progress.first_bad;
  if (numbers.contains("first_bad.loss")) {
    first.loss = state_value(numbers, "first_bad.loss", kResume);
    first.learning_rate = state_value(numbers, "first_bad.learning_rate", kResume);
    if (numbers.contains("first_bad.loss_scale"))
      first.loss_scale = state_value(numbers, "first_bad.loss_scale", kResume);
  } else if (bad > 0 && !steps.empty()) {
    first = steps[steps.size() - std::min(steps.size(), static_cast<std::size_t>(bad))];
  }
}

std::string window_key(const char* sum) { return std::string("window/") + sum; }

at::Tensor optional_tensor(const checkpoint::NamedTensors& tensors, const std::string& name) {
  const auto found = tensors.find(name);
  if (found == tensors.end()) return {};
  if (found->second.numel() != 1)
    throw UsageError({.where = kResume,
                      .what = "a sum in the checkpoint is no number",
                      .seen = c10::str(name, " ", found->second.sizes()),
                      .accepted = "one number"});
  return found->second.reshape({}).clone();
}

}  // namespace

const Evaluation* Progress::best() const {
  if (!history.best_epoch) return nullptr;
  const auto it = std::find_if(
      history.epochs.begin(), history.epochs.end(),
      [&](const EpochRecord& one) { return one.epoch == *history.best_epoch && one.validation; });
  return it == history.epochs.end() ? nullptr : &*it->validation;
}

void write(const Progress& progress, checkpoint::Checkpoint& to, int64_t most) {
  StateDict& numbers = to.numbers[kProgress];
  each_count(progress, [&](const std::string& name, int64_t count) {
    numbers[name] = static_cast<double>(count);
  });
  each_number(progress, [&](const std::string& name, double number) { numbers[name] = number; });
  numbers["in_epoch"] = progress.in_epoch ? 1 : 0;
  if (progress.history.best_epoch)
    numbers["best_epoch"] = static_cast<double>(*progress.history.best_epoch);
  loop::each_sum(progress.window.sums, [&](const char* name, const at::Tensor& sum) {
    if (sum.defined()) to.state[window_key(name)] = sum;
  });
  write_first_bad(progress, numbers);
  write_columns(progress.history, to.state, most);
}

Progress read_progress(const checkpoint::Checkpoint& from) {
  const auto part = from.numbers.find(kProgress);
  if (part == from.numbers.end())
    throw UsageError(
        {.where = kResume,
         .what = "the checkpoint does not say how far its run has come",
         .seen = from.numbers.empty() ? "weights alone" : "that of a loop of one's own",
         .accepted = "a checkpoint that a Trainer saved",
         .advice = "load weights by checkpoint::load(path, model, device)"});
  const StateDict& numbers = part->second;
  Progress progress;
  each_count(progress, [&](const std::string& name, int64_t& count) {
    const bool is_counted =
        name != "answers" || numbers.contains(name);  // older versions: examples
    count = state_count(numbers, is_counted ? name : "epoch_examples", kResume);
  });
  each_number(progress, [&](const std::string& name, double& number) {
    const bool is_phase = name.starts_with("epoch_seconds.");  // older versions have others
    if (!is_phase || numbers.contains(name)) number = state_value(numbers, name, kResume);
  });
  progress.in_epoch = state_count(numbers, "in_epoch", kResume, 1) == 1;
  if (numbers.contains("best_epoch"))
    progress.history.best_epoch = state_count(numbers, "best_epoch", kResume);
  progress.epoch.epoch = std::max<int64_t>(progress.epochs_begun, 1);
  loop::Sums& window = progress.window.sums;
  loop::each_sum(window, [&](const char* name, at::Tensor& sum) {
    sum = optional_tensor(from.state, window_key(name));
  });
  if (window.correct.defined() && !window.answers.defined())
    window.answers = at::full({}, window.examples, at::kLong);
  read_columns(from.state, progress.history);
  read_first_bad(numbers, progress);
  return progress;
}

}  // namespace demi::train
