#pragma once

#include <ATen/core/Tensor.h>

namespace demi::sdpa {

/// A mask with dimensions of 1 in front.
at::Tensor four_dimensions(const at::Tensor& mask);

/// The mask as a term of the sums: a bool one has -Inf where it is false.
at::Tensor added_mask(const at::Tensor& mask, c10::ScalarType dtype);

}  // namespace demi::sdpa
