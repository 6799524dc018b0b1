#pragma once

#include <ATen/core/Tensor.h>

namespace demi::tensor {

/// kernels::inverse_of_scale for a scale that lies on a device: fp32, (). Does not synchronise.
inline at::Tensor inverse_of_scale(const at::Tensor& scale) {
  return scale.to(at::kDouble).reciprocal().to(at::kFloat);
}

}  // namespace demi::tensor
