#pragma once

#include <ATen/core/Tensor.h>

#include <optional>
#include <utility>
#include <vector>

#include "demi/core/export.h"

namespace demi::weights {

/// The places in `tensors` (strided, defined) of two that have a byte of memory in common; empty
/// where no two do. Tensors that interleave without meeting have none. Memory that is copied at its
/// next write (at::_lazy_clone) counts as nobody's.
DEMI_API std::optional<std::pair<std::size_t, std::size_t>> find_overlap(
    const std::vector<at::Tensor>& tensors);

}  // namespace demi::weights
