#pragma once

#include <ATen/ScalarOps.h>
#include <ATen/core/Tensor.h>

namespace demi::imported {

/// The tensor that Python makes of a number that stands where a tensor is taken: its dtype does not
/// count in type promotion.
inline at::Tensor wrapped_number(const c10::Scalar& number) {
  at::Tensor tensor = c10::scalar_to_tensor(number);
  tensor.unsafeGetTensorImpl()->set_wrapped_number(true);
  return tensor;
}

}  // namespace demi::imported
