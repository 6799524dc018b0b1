#pragma once

#include <ATen/core/Tensor.h>

#include <optional>

#include "demi/core/export.h"

namespace demi::sdpa {

/// at::scaled_dot_product_attention with its own arguments, of 16-bit CPU tensors. nullopt:
/// LibTorch's op is to run, which may throw: with DEMI_ATTENTION=libtorch or DEMI_KERNELS=aten, for
/// tensors that products::is_ordinary() refuses, and for arguments that do not fit.
DEMI_API std::optional<at::Tensor> in_region(const at::Tensor& q, const at::Tensor& k,
                                             const at::Tensor& v,
                                             const std::optional<at::Tensor>& mask, double dropout,
                                             bool causal, std::optional<double> scale,
                                             bool grouped);

}  // namespace demi::sdpa
