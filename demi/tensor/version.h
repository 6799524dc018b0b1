#pragma once

#include <c10/core/TensorImpl.h>

#include <cstdint>

// Questions that every op on a weight and every step asks of each tensor, answered inline.
namespace demi::tensor {

/// -1 for an inference tensor.
inline std::int64_t version_of(const c10::TensorImpl& tensor) {
  const auto& counter = tensor.version_counter();
  return counter.enabled() ? static_cast<std::int64_t>(counter.current_version()) : -1;
}

/// A few numbers: a loop is shorter than ArrayRef's call of memcmp.
inline bool same(c10::IntArrayRef a, c10::IntArrayRef b) {
  if (a.size() != b.size()) return false;
  for (std::size_t i = 0; i < a.size(); ++i)
    if (a[i] != b[i]) return false;
  return true;
}

/// Whether every element of `view` is one of the dense tensor `base`: a view is bound to its base
/// by autograd alone, and set_data on either, or an offset of its own, leads it elsewhere. False
/// for an empty view.
inline bool lies_within(const c10::TensorImpl& view, const c10::TensorImpl& base) {
  if (view.numel() == 0 ||
      view.unsafe_storage().unsafeGetStorageImpl() != base.unsafe_storage().unsafeGetStorageImpl())
    return false;
  const auto sizes = view.sizes(), strides = view.strides();
  std::int64_t last = view.storage_offset() - base.storage_offset();
  if (last < 0) return false;
  for (std::size_t i = 0; i < sizes.size(); ++i) last += (sizes[i] - 1) * strides[i];
  return last < base.numel();
}

}  // namespace demi::tensor
