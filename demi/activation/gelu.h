#pragma once

#include <ATen/core/Tensor.h>

#include <optional>
#include <string_view>

#include "demi/core/export.h"

namespace demi {

/// torch.nn.functional.gelu with its `approximate`, "none" or "tanh". "tanh" of FP32, fp16 and bf16
/// on a CPU is computed by kernels of demi's, in FP32, and rounded once: the error is at most 1e-6
/// of the result, 2e-5 of it far below 0, and that of the slope 1e-6. "none", other tensors,
/// gradients of gradients, and everything with DEMI_KERNELS=aten are LibTorch's. In a region it is
/// the op, as the region runs it. Shape and dtype of `x`, and its strides if it has no gaps in
/// memory. Throws c10::Error for other names.
DEMI_API at::Tensor gelu(const at::Tensor& x, std::string_view approximate = "none");

}  // namespace demi

namespace demi::activation {

/// The kernel that a region runs for aten::gelu: demi's for "tanh" of 16-bit CPU tensors. nullopt:
/// LibTorch's op runs.
DEMI_API std::optional<at::Tensor> gelu_in_region(const at::Tensor& x,
                                                  std::string_view approximate);

}  // namespace demi::activation
