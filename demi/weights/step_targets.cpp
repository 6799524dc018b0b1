#include "demi/weights/step_targets.h"

#include <c10/util/StringUtil.h>

#include <algorithm>
#include <mutex>
#include <utility>

#include "demi/core/error.h"
#include "demi/weights/cache.h"
#include "demi/weights/overlap.h"

namespace demi::weights {

StepTargets::StepTargets(std::vector<at::Tensor> parameters)
    : parameters_(std::move(parameters)),
      targets_(parameters_.size()),
      owned_(parameters_.size()) {}

/// Called under the lock: the entries found stay as long as the table does not change.
void StepTargets::find_owned() {
  if (generation_ == owned_generation) return;
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    const auto found = owned().find(parameters_[i].unsafeGetTensorImpl());
    owned_[i] = found == owned().end() ? nullptr : &found->second;
  }
  generation_ = owned_generation;
}

void StepTargets::add_copy(StepTarget& target, const at::Tensor& low) {
  target.copies[static_cast<std::size_t>(target.copy_count++)] = {low.scalar_type(),
                                                                  low.mutable_data_ptr()};
  held_.push_back(low);
}

/// Before any pointer is taken: parameters that share a storage must not make each other's copies
/// stale.
void StepTargets::choose_copies(std::size_t i, bool captured) {
  const at::Tensor& parameter = parameters_[i];
  StepTarget& target = targets_[i];
  const CurrentStream current(parameter);
  const auto has_room = [&] { return target.copy_count < std::ssize(target.copies); };
  for (auto& copy : owned_[i]->copies) {
    copy.in_step = has_room() && is_current(copy, *parameter.unsafeGetTensorImpl());
    if (!copy.in_step && !(captured && has_room() && fits(copy.low, parameter))) continue;
    copy.ready.include(current, copy.low);
    add_copy(target, copy.low);
  }
  if (!captured) return;
  for (const auto dtype : {at::kHalf, at::kBFloat16}) {  // of steps captured before, since dropped
    const auto* end = target.copies.begin() + target.copy_count;
    const auto is_there = [&](const Copy& copy) { return copy.dtype == dtype; };
    if (!has_room() || std::any_of(target.copies.cbegin(), end, is_there)) continue;
    const auto low = memory_for(owned_[i]->captured, parameter, dtype);
    if (low && low->defined()) add_copy(target, *low);
  }
}

void StepTargets::hold_for_replays(std::size_t i, std::vector<at::Tensor> copies) {
  const auto step =
      std::make_shared<const CapturedStep>(CapturedStep{targets_[i].parameter, std::move(copies)});
  captured_.push_back(step);
  owned_[i]->captured.push_back(step);
}

/// Returns whether a parameter is in other memory than in the step before.
bool StepTargets::take_pointers(bool captured) {
  bool moved = false;
  auto low = held_.cbegin();
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    void* data = parameters_[i].mutable_data_ptr();
    moved |= std::exchange(targets_[i].parameter, data) != data;
    const auto end = low + targets_[i].copy_count;
    if (captured && owned_[i]) hold_for_replays(i, {low, end});
    low = end;
  }
  return moved;
}

void StepTargets::refuse_overlap() const {
  const auto pair = find_overlap(parameters_);
  if (!pair) return;
  refuse({.where = "weights.StepTargets",
          .what = "two parameters of one optimizer lie in the same memory",
          .seen = c10::str("shapes ", parameters_[pair->first].sizes(), " and ",
                           parameters_[pair->second].sizes()),
          .accepted = "parameters with memory of their own",
          .advice = "tie weights by using one parameter in both places"});
}

const std::vector<StepTarget>& StepTargets::begin(bool captured) {
  held_.clear();
  bool moved = false;
  {
    const std::unique_lock lock(cache_mutex());
    find_owned();
    for (std::size_t i = 0; i < parameters_.size(); ++i) {
      targets_[i].copy_count = 0;
      if (owned_[i]) choose_copies(i, captured);
    }
    moved = take_pointers(captured);
  }
  if (moved) {
    try {
      refuse_overlap();
    } catch (...) {
      targets_.assign(parameters_.size(), {});  // refused the next time, too
      throw;
    }
  }
  return targets_;
}

/// Called after a step, under the lock. `is_written(owned, parameter, copy)`: whether the step
/// wrote the copy, too.
template <class IsWritten>
void StepTargets::renew_copies(const IsWritten& is_written) {
  find_owned();
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    const at::Tensor& parameter = parameters_[i];
    if (!parameter.is_inference()) parameter.unsafeGetTensorImpl()->bump_version();
    if (!owned_[i]) continue;
    for (auto& copy : owned_[i]->copies)
      if (is_written(*owned_[i], parameter, copy)) renew(copy, parameter);
  }
}

void StepTargets::finish() {
  {
    const std::unique_lock lock(cache_mutex());
    renew_copies([](const auto&, const auto&, const auto& copy) { return copy.in_step; });
  }
  held_.clear();
}

void StepTargets::note_replay() {
  const std::unique_lock lock(cache_mutex());
  renew_copies([](auto& owned, const at::Tensor& parameter, const auto& copy) {
    const auto memory = memory_for(owned.captured, parameter, copy.dtype);
    return memory && memory->defined() && memory->const_data_ptr() == copy.low.const_data_ptr();
  });
}

}  // namespace demi::weights
