#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "demi/tensor/version.h"

namespace demi::recomputation {

/// -1 for an undefined tensor, and for one without versions.
inline std::int64_t version_of(const at::Tensor& tensor) {
  return tensor.defined() ? tensor::version_of(*tensor.unsafeGetTensorImpl()) : -1;
}

/// Data and version counter of `tensor`, as detach() gives them, and no op that is observed.
inline at::Tensor sharing(const at::Tensor& tensor) {
  if (!tensor.defined()) return tensor;
  const auto& impl = *tensor.unsafeGetTensorImpl();
  return at::Tensor(impl.shallow_copy_and_detach(impl.version_counter(),
                                                 /*allow_tensor_metadata_change=*/true));
}

}  // namespace demi::recomputation
