#include "demi/loop/turns.h"

#include <c10/util/StringUtil.h>

#include <algorithm>

#include "demi/core/error.h"
#include "demi/loop/step_checks.h"

namespace demi::loop {
namespace {

using torch::optim::Optimizer;

}  // namespace

Turns::Turns(const std::vector<Optimizer*>& optimizers, std::int64_t accumulate)
    : optimizers_(optimizers),
      accumulate_(accumulate),
      taken_(optimizers.size()),
      had_batch_(optimizers.size()),
      had_own_(optimizers.size()) {}

std::size_t Turns::number_of(const Optimizer& one) const {
  const auto found = std::ranges::find(optimizers_, &one);
  if (found == optimizers_.end())
    refuse({.where = kStep,
            .what = "the optimizer is none of the job's",
            .seen = c10::str("not among ", optimizers_.size()),
            .accepted = "one of Job::optimizers"});
  return static_cast<std::size_t>(found - optimizers_.begin());
}

void Turns::check(const MicroBatch& batch) const {
  for (const Optimizer* one : batch.of)
    if (taken_[number_of(*one)])
      refuse({.where = kStep,
              .what = "a batch is for an optimizer that was taken in this step",
              .seen = c10::str("optimizer ", number_of(*one)),
              .accepted = "one that was not, or a new step",
              .advice = "call finish() before"});
}

std::vector<Optimizer*> Turns::receivers(const MicroBatch& batch) const {
  if (!batch.of.empty()) return batch.of;
  std::vector<Optimizer*> all;
  for (std::size_t i = 0; i < optimizers_.size(); ++i)
    if (!taken_[i]) all.push_back(optimizers_[i]);
  return all;
}

bool Turns::ends(const MicroBatch& batch) const {
  return batch.last || (batch.of.empty() ? batches_of_all_ : batches_of_turn_) + 1 >= accumulate_;
}

void Turns::count(const MicroBatch& batch, bool ends, bool is_own) {
  for (std::size_t i = 0; i < optimizers_.size(); ++i) {
    if (batch.of.empty() ? taken_[i].has_value()
                         : std::ranges::find(batch.of, optimizers_[i]) == batch.of.end())
      continue;
    had_batch_[i] = true;
    had_own_[i] = had_own_[i] || is_own;
  }
  ++(batch.of.empty() ? batches_of_all_ : batches_of_turn_);
  is_due_ |= batch.of.empty() && ends;
}

bool Turns::had_batch() const { return std::ranges::find(had_batch_, true) != had_batch_.end(); }

bool Turns::had_own_batch() const { return std::ranges::find(had_own_, true) != had_own_.end(); }

std::vector<std::size_t> Turns::waiting() const {
  std::vector<std::size_t> all;
  for (std::size_t i = 0; i < optimizers_.size(); ++i)
    if (had_batch_[i] && !taken_[i]) all.push_back(i);
  return all;
}

void Turns::require_not_taken(std::size_t number) const {
  if (taken_[number])
    refuse({.where = kStep,
            .what = "an optimizer is taken twice in one step",
            .seen = c10::str("optimizer ", number),
            .accepted = "once",
            .advice = "call finish() before"});
}

void Turns::require_batch(std::size_t number) const {
  if (!had_batch_[number])
    refuse({.where = kStep,
            .what = "an optimizer is taken without a batch",
            .seen = c10::str("optimizer ", number),
            .accepted = "one batch or more since the last step",
            .advice = "call batch() before"});
}

void Turns::take(std::size_t number, const StepResult& result) {
  taken_[number] = result;
  batches_of_turn_ = 0;
}

bool Turns::is_any_taken() const {
  return std::ranges::any_of(taken_, [](const auto& one) { return one.has_value(); });
}

std::vector<StepResult> Turns::results() const {
  std::vector<StepResult> results;
  for (const auto& result : taken_)
    if (result) results.push_back(*result);
  return results;
}

void Turns::forget() {
  taken_.assign(taken_.size(), std::nullopt);
  had_batch_.assign(had_batch_.size(), false);
  had_own_.assign(had_own_.size(), false);
  batches_of_turn_ = batches_of_all_ = 0;
  is_due_ = false;
}

void Turns::reopen(std::int64_t batches) {
  forget();
  batches_of_all_ = batches;
  had_batch_.assign(had_batch_.size(), batches > 0);
  had_own_.assign(had_own_.size(), batches > 0);
  is_due_ = batches >= accumulate_;
}

}  // namespace demi::loop
