#pragma once

#include <ATen/core/Tensor.h>

#include <optional>
#include <utility>
#include <vector>

#include "demi/core/export.h"

namespace demi::weights {

/// The indices of two tensors that share a byte of memory; empty if no two do. All are strided and
/// defined. Tensors that interleave without sharing a byte do not overlap. Memory that is copied at
/// its next write (at::_lazy_clone) is ignored.
DEMI_API std::optional<std::pair<std::size_t, std::size_t>> find_overlap(
    const std::vector<at::Tensor>& tensors);

}  // namespace demi::weights
