#include "demi/attention/mask.h"

#include <ATen/ATen.h>

#include <limits>

namespace demi::sdpa {

at::Tensor four_dimensions(const at::Tensor& mask) {
  at::Tensor result = mask;
  while (result.dim() < 4) result = result.unsqueeze(0);
  return result;
}

at::Tensor added_mask(const at::Tensor& mask, c10::ScalarType dtype) {
  if (mask.scalar_type() != at::kBool) return mask.to(dtype);
  return at::zeros(mask.sizes(), mask.options().dtype(dtype))
      .masked_fill_(mask.logical_not(), -std::numeric_limits<double>::infinity());
}

}  // namespace demi::sdpa
