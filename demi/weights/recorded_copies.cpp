#include "demi/weights/recorded_copies.h"

#include <ATen/core/grad_mode.h>

#include <mutex>
#include <utility>

#include "demi/weights/cache.h"

namespace demi::weights {
namespace {

// The copy if it is valid. The caller holds a lock.
const LowCopy* valid_copy(const at::Tensor& parameter, c10::ScalarType dtype) {
  const auto found = owned().find(parameter.unsafeGetTensorImpl());
  if (found == owned().end()) return nullptr;
  const LowCopy* copy = find(found->second.copies, dtype);
  return copy && is_current(*copy, *parameter.unsafeGetTensorImpl()) ? copy : nullptr;
}

}  // namespace

RecordedCopies::RecordedCopies(const std::vector<at::Tensor>& parameters) {
  const std::unique_lock lock(cache_mutex());
  for (const at::Tensor& parameter : parameters) {
    std::vector<at::Tensor> all;
    for (const auto dtype : {at::kHalf, at::kBFloat16})
      if (const LowCopy* copy = valid_copy(parameter, dtype)) {
        copies_.push_back({parameter, copy->low, dtype});
        all.push_back(copy->low);
      }
    if (all.empty()) continue;
    held_.push_back(std::make_shared<const CapturedStep>(
        CapturedStep{parameter.const_data_ptr(), std::move(all), /*writes=*/false}));
    owned().at(parameter.unsafeGetTensorImpl()).captured.push_back(held_.back());
  }
}

bool RecordedCopies::refresh() const {
  std::vector<const Copy*> stale;
  {
    const Reading lock;
    for (const Copy& one : copies_) {
      const LowCopy* copy = valid_copy(one.parameter, one.dtype);
      if (!copy)
        stale.push_back(&one);
      else if (copy->low.const_data_ptr() != one.low.const_data_ptr())
        return false;
    }
  }
  const at::NoGradGuard no_grad;
  for (const Copy* one : stale) {
    const at::Tensor low = low_precision(one->parameter, one->dtype);
    if (low.const_data_ptr() != one->low.const_data_ptr()) return false;
  }
  return true;
}

}  // namespace demi::weights
