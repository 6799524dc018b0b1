#pragma once

#include <ATen/core/Tensor.h>

namespace demi::optim {

/// Whether two elements of a strided tensor share memory, so that it cannot be written element by
/// element.
bool overlaps_itself(const at::Tensor& tensor);

}  // namespace demi::optim
