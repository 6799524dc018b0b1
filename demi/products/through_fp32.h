#pragma once

#include <ATen/core/Tensor.h>

#include <array>

#include "demi/core/export.h"

namespace demi::products {

/// slow_in() for bf16 and for fp16, determined once.
DEMI_API const std::array<bool, 2>& slow_dtypes();

/// Whether products of this 16-bit dtype are to run through FP32: bf16 by bf16_products(), fp16 on
/// each x86-64 processor. Multiplying the same numbers in FP32 is then faster than LibTorch, whose
/// oneDNN emulates missing instructions, or has slow ones. FP32 holds every product of two 16-bit
/// numbers exactly; only the order of the sums differs. False for other dtypes.
inline bool slow_in(at::ScalarType dtype) {
  return (dtype == at::kBFloat16 && slow_dtypes()[0]) || (dtype == at::kHalf && slow_dtypes()[1]);
}

/// Whether kernels of demi's may read these tensors and differentiate what they make of them: they
/// are dense, on a device of that type (CPU or CUDA), of one dtype, not empty, without a tangent of
/// forward mode, and the call is outside of functorch's transforms and of tracing. Undefined
/// tensors are ignored.
DEMI_API bool is_ordinary(std::initializer_list<const at::Tensor*> tensors,
                          c10::DeviceType device = c10::kCPU);

/// Whether products of these tensors run through FP32: is_ordinary(), and slow_in() holds for their
/// dtype. Always false with DEMI_KERNELS=aten.
DEMI_API bool takes(std::initializer_list<const at::Tensor*> tensors);

}  // namespace demi::products
