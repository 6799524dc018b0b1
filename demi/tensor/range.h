#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/ScalarType.h>

#include <optional>

#include "demi/core/export.h"

namespace demi::tensor {

/// The value that is furthest beyond the range of `dtype` among the finite ones of a tensor of any
/// dtype and device: rounded to `dtype` it would be Inf, or another integer. Empty if none is
/// beyond it. Each part of a complex number counts. Synchronises with the device, unless `dtype` is
/// the tensor's.
DEMI_API std::optional<double> beyond_range(const at::Tensor& tensor, c10::ScalarType dtype);

}  // namespace demi::tensor
