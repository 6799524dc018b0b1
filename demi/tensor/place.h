#pragma once

#include <ATen/core/TensorBase.h>
#include <c10/core/Device.h>

namespace demi::tensor {

/// Whether the tensor lies on the device; without an index: on one of that type.
inline bool is_on(const at::TensorBase& tensor, c10::Device device) {
  const c10::Device place = tensor.device();
  return place.type() == device.type() && (!device.has_index() || place == device);
}

}  // namespace demi::tensor
