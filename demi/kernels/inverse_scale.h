#pragma once

#include <limits>

#include "demi/kernels/host_device.h"

namespace demi::kernels {

/// FP32 of 1 / scale, divided in FP64, as torch.amp.GradScaler computes it.
DEMI_HOST_DEVICE float inverse_of_scale(float scale) {
  return static_cast<float>(1.0 / static_cast<double>(scale));
}

/// False for the inverse of a scale that is 0, negative, Inf or NaN, or so small that its inverse
/// is Inf: no step can be taken with its gradients.
DEMI_HOST_DEVICE bool is_usable(float inverse_scale) {
  return inverse_scale > 0.0f && inverse_scale < std::numeric_limits<float>::infinity();
}

}  // namespace demi::kernels
