#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <ATen/record_function.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

namespace demi::monitor {

/// Keeps the ops of an observer that reads tensors in this thread from being observed or cast, and
/// from leaving a graph.
struct Unobserved {
  at::DisableRecordFunctionGuard unobserved;
  at::NoGradGuard no_grad;
  c10::impl::ExcludeDispatchKeyGuard no_autocast{c10::autocast_dispatch_keyset};
};

/// The values that the tensor stores: of a sparse one those of its entries, summed where several
/// have one place.
inline at::Tensor values_of(const at::Tensor& tensor) {
  return tensor.is_sparse() ? tensor.coalesce().values() : tensor.detach();
}

/// The memory by which an observer recognises tensors that share it; null without any.
inline const void* memory_of(const at::Tensor& tensor) {
  return tensor.has_storage() ? tensor.storage().unsafeGetStorageImpl() : nullptr;
}

}  // namespace demi::monitor
