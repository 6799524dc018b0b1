#pragma once

#include <ATen/core/Tensor.h>

#include "demi/core/export.h"

namespace demi::optim {

/// Asks the kernel for huge pages under a large CPU tensor, those that it has already included. A
/// step reads five arrays side by side; with pages of 4 KiB it waits for address translation more
/// than for data. Where the kernel declines, nothing is different.
DEMI_API void ask_for_huge_pages(const at::Tensor& tensor);

}  // namespace demi::optim
