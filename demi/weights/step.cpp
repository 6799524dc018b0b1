#include <ATen/core/Tensor.h>

#include <mutex>

#include "demi/weights/cache.h"
#include "demi/weights/weights.h"

namespace demi::weights {
namespace {

Copies* copies_of(const at::Tensor& parameter) {
  auto& table = owned();
  const auto found = table.find(parameter.unsafeGetTensorImpl());
  return found == table.end() ? nullptr : &found->second.copies;
}

// Before any pointer is taken: parameters that share a storage must not make each other's copies
// stale.
void choose_copies(const at::Tensor& parameter, StepTarget& target) {
  target = {};
  Copies* copies = copies_of(parameter);
  if (!copies) return;
  for (auto& copy : *copies) {
    copy.in_step = static_cast<std::size_t>(target.copy_count) < target.copies.size() &&
                   is_current(copy, *parameter.unsafeGetTensorImpl());
    if (copy.in_step)
      target.copies[target.copy_count++] = {copy.dtype, copy.low.mutable_data_ptr()};
  }
}

}  // namespace

void begin_step(at::TensorList parameters, std::vector<StepTarget>& targets) {
  targets.resize(parameters.size());
  const std::unique_lock lock(cache_mutex());
  for (std::size_t i = 0; i < parameters.size(); ++i) choose_copies(parameters[i], targets[i]);
  for (std::size_t i = 0; i < parameters.size(); ++i)
    targets[i].parameter = parameters[i].mutable_data_ptr();
}

void finish_step(at::TensorList parameters) {
  const std::unique_lock lock(cache_mutex());
  for (const auto& parameter : parameters) {
    if (!parameter.is_inference()) parameter.unsafeGetTensorImpl()->bump_version();
    if (Copies* copies = copies_of(parameter)) {
      for (auto& copy : *copies)
        if (copy.in_step) renew(copy, parameter);
    }
  }
}

}  // namespace demi::weights
