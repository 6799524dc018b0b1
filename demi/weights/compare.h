#pragma once

#include <c10/core/TensorImpl.h>

#include <cstdint>

// What every op on a weight and every step asks of each tensor, without a call.
namespace demi::weights {

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

}  // namespace demi::weights
