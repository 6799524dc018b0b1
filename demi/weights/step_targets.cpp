#include "demi/weights/step_targets.h"

#include <mutex>

#include "demi/weights/cache.h"

namespace demi::weights {
namespace {

// Before any pointer is taken: parameters that share a storage must not make each other's copies
// stale.
void choose_copies(Copies& copies, const at::Tensor& parameter, StepTarget& target) {
  for (auto& copy : copies) {
    copy.in_step = static_cast<std::size_t>(target.copy_count) < target.copies.size() &&
                   is_current(copy, *parameter.unsafeGetTensorImpl());
    if (copy.in_step)
      target.copies[target.copy_count++] = {copy.dtype, copy.low.mutable_data_ptr()};
  }
}

}  // namespace

StepTargets::StepTargets(std::vector<at::Tensor> parameters)
    : parameters_(std::move(parameters)),
      targets_(parameters_.size()),
      copies_(parameters_.size()) {}

/// Under the lock: what it finds is there as long as the table does not change.
void StepTargets::find_copies() {
  if (generation_ == owned_generation) return;
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    const auto found = owned().find(parameters_[i].unsafeGetTensorImpl());
    copies_[i] = found == owned().end() ? nullptr : &found->second.copies;
  }
  generation_ = owned_generation;
}

const std::vector<StepTarget>& StepTargets::begin() {
  const std::unique_lock lock(cache_mutex());
  find_copies();
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    targets_[i].copy_count = 0;
    if (copies_[i]) choose_copies(*copies_[i], parameters_[i], targets_[i]);
  }
  for (std::size_t i = 0; i < parameters_.size(); ++i)
    targets_[i].parameter = parameters_[i].mutable_data_ptr();
  return targets_;
}

void StepTargets::finish() {
  const std::unique_lock lock(cache_mutex());
  find_copies();
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    const at::Tensor& parameter = parameters_[i];
    if (!parameter.is_inference()) parameter.unsafeGetTensorImpl()->bump_version();
    if (!copies_[i]) continue;
    for (auto& copy : *copies_[i])
      if (copy.in_step) renew(copy, parameter);
  }
}

}  // namespace demi::weights
