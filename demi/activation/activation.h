#pragma once

#include <ATen/core/Tensor.h>

#include <optional>
#include <string_view>

#include "demi/core/export.h"

namespace demi {

/// torch.nn.functional.gelu with its `approximate`, "none" or "tanh", by kernels of demi's on a
/// CPU: FP32, fp16 and bf16 are computed in FP32 and rounded once. The error is at most 1e-6 of the
/// result, 2e-5 of it far below 0, and that of the slope 1e-6. Other tensors, gradients of
/// gradients, and everything with DEMI_KERNELS=aten are LibTorch's.
/// Shape, dtype and strides of `x`. Throws c10::Error for other names.
DEMI_API at::Tensor gelu(const at::Tensor& x, std::string_view approximate = "none");

/// x sigmoid(x), likewise.
DEMI_API at::Tensor silu(const at::Tensor& x);

}  // namespace demi

namespace demi::activation {

/// What a region runs for the op: that of demi for 16-bit CPU tensors. nullopt: LibTorch's op is to
/// run, for tensors that the functions above leave to it, and for FP32.
DEMI_API std::optional<at::Tensor> gelu_in_region(const at::Tensor& x,
                                                  std::string_view approximate);
DEMI_API std::optional<at::Tensor> silu_in_region(const at::Tensor& x);

}  // namespace demi::activation
