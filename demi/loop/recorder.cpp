#include "demi/loop/recorder.h"

#include <ATen/ops/stack.h>
#include <torch/types.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "demi/optim/optimizer.h"

namespace demi::loop {
namespace {

at::Tensor on_device_of(const at::Tensor& other, const at::Tensor& one) {
  return one.device() == other.device() ? one : one.to(other.device());
}

void add_to(at::Tensor& sum, const at::Tensor& more) {
  if (more.defined()) sum = sum.defined() ? sum + on_device_of(sum, more) : more;
}

// Loss scale, norm and whether it was skipped, of all optimizers' steps together.
void add_results(const std::vector<StepResult>& results, bool scaled, StepMetrics& record) {
  double squares = 0;
  bool measured = !results.empty(), nonfinite = false;
  for (const StepResult& result : results) {
    const StepResult::Numbers numbers = result.numbers();
    const double norm = numbers.grad_norm;
    const bool skipped = numbers.found_inf != 0;
    record.skipped |= skipped;
    nonfinite |= skipped && numbers.above_norm == 0;
    // A norm of NaN was not computed, or belongs to gradients with Inf or NaN.
    measured &= (skipped && numbers.above_norm == 0) || !std::isnan(norm);
    squares += norm * norm;
    if (scaled && !record.loss_scale) record.loss_scale = numbers.scale;
  }
  record.skipped_for_norm = record.skipped && !nonfinite;
  if (measured) record.grad_norm = std::sqrt(squares);
}

}  // namespace

void Sums::add(const Sums& batch) {
  add_to(loss, batch.loss);
  add_to(judged, batch.judged);
  add_to(correct, batch.correct);
  add_to(answers, batch.answers);
  examples += batch.examples;
}

void Recorder::start_clock() {
  since_ = Clock::now();
  waited_before_ = timer_.spent(profile::Phase::data);
}

template <class Record>
void Recorder::add_seconds(Record& to) {
  const auto now = Clock::now();
  const auto waited = timer_.spent(profile::Phase::data);
  to.seconds += std::chrono::duration<double>(now - std::exchange(since_, now)).count();
  to.data_seconds += (waited - std::exchange(waited_before_, waited)).count();
}

const Window& Recorder::window_until_now() {
  if (window_.is_open()) add_seconds(window_);
  return window_;
}

void Recorder::close(const StepMetrics& known, const std::vector<StepResult>& results) {
  unread_.push_back({known, std::move(window_.sums), results});
  unread_.back().known.seconds = window_.seconds;
  unread_.back().known.data_seconds = window_.data_seconds;
  window_ = {};
}

// An observer may have read the step already.
void Recorder::count_seconds() {
  if (!unread_.empty()) add_seconds(unread_.back().known);
}

// The sums of the unread steps, 0 for a step without such a sum. Copies once from the device for
// all steps.
std::vector<double> Recorder::read_sums(at::Tensor Sums::*sum) const {
  std::vector<double> all(unread_.size());
  std::vector<at::Tensor> on_device;
  std::vector<std::size_t> places;
  for (std::size_t i = 0; i < all.size(); ++i) {
    const at::Tensor& one = unread_[i].sums.*sum;
    if (!one.defined()) continue;
    if (one.is_cpu()) {
      all[i] = one.item<double>();
    } else {
      on_device.push_back(on_device.empty() ? one : on_device_of(on_device.front(), one));
      places.push_back(i);
    }
  }
  if (on_device.empty()) return all;
  const at::Tensor numbers = at::stack(on_device).to(c10::kCPU, c10::kDouble);
  const auto* number = numbers.const_data_ptr<double>();
  for (const std::size_t i : places) all[i] = *number++;
  return all;
}

// The learning rates that the first optimizer's first group had in these steps, if they come from
// the table of Optimizer::set_scheduled_rates; else empty. It has taken no step after them. A
// skipped step has the rate that it would have used.
std::vector<double> Recorder::used_rates() const {
  const auto* own = dynamic_cast<const optim::Optimizer*>(&first_);
  const at::Tensor table = own ? own->scheduled_rates(0) : at::Tensor();
  if (!table.defined()) return {};
  std::vector<bool> was_taken;
  for (const Unread& step : unread_)
    was_taken.push_back(std::ranges::any_of(step.results, [&](const StepResult& result) {
      return result.optimizer() == &first_ && !result.skipped();
    }));
  std::int64_t before = own->steps_taken() - std::ranges::count(was_taken, true);
  const auto* rates = table.const_data_ptr<double>();
  std::vector<double> used;
  for (const bool taken : was_taken) {
    used.push_back(rates[std::clamp<std::int64_t>(before, 0, table.numel() - 1)]);
    before += taken ? 1 : 0;
  }
  return used;
}

std::vector<ReadStep> Recorder::read() {
  std::vector<ReadStep> all;
  if (unread_.empty()) return all;
  const std::vector<double> loss = read_sums(&Sums::loss), judged = read_sums(&Sums::judged),
                            correct = read_sums(&Sums::correct),
                            answers = read_sums(&Sums::answers), rates = used_rates();
  for (std::size_t i = 0; i < unread_.size(); ++i) {
    const Sums& sums = unread_[i].sums;
    ReadStep step{
        .metrics = unread_[i].known,
        .loss = loss[i],
        .judged = sums.judged.defined() ? judged[i] : loss[i],
        .correct = correct[i],
        .answers = sums.answers.defined() ? answers[i] : static_cast<double>(sums.examples),
        .examples = sums.examples};
    StepMetrics& record = step.metrics;
    if (!rates.empty()) record.learning_rate = rates[i];
    record.loss = step.loss / step.answers;  // NaN of none
    if (sums.correct.defined() && step.answers > 0) record.accuracy = step.correct / step.answers;
    add_results(unread_[i].results, scaler_.is_enabled(), record);
    all.push_back(step);
  }
  unread_.clear();
  return all;
}

}  // namespace demi::loop
