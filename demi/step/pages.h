#pragma once

#include <ATen/core/Tensor.h>

#include "demi/core/export.h"

namespace demi::optim {

/// Asks the operating system for huge pages under a large CPU tensor, also for pages that are
/// already in use. A step reads five arrays side by side; with pages of 4 KiB it waits for address
/// translation more than for data. Nothing changes if the system declines.
DEMI_API void ask_for_huge_pages(const at::Tensor& tensor);

}  // namespace demi::optim
