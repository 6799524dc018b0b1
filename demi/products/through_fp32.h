#pragma once

#include <ATen/core/Tensor.h>

#include <array>

#include "demi/core/export.h"

namespace demi::products {

/// slow_in() of bf16 and of fp16, asked once.
DEMI_API const std::array<bool, 2>& slow_dtypes();

/// Whether this processor, an x86-64 one, has no instructions for products of this 16-bit dtype, or
/// oneDNN may not use them (onednn_instruction_set()), so that multiplying the same numbers in FP32
/// is faster than what LibTorch does (oneDNN emulates the instructions). FP32 holds every product
/// of two 16-bit numbers exactly; only the order of the sums differs. False for other dtypes.
inline bool slow_in(at::ScalarType dtype) {
  return (dtype == at::kBFloat16 && slow_dtypes()[0]) || (dtype == at::kHalf && slow_dtypes()[1]);
}

/// Whether products of these run through FP32: dense CPU tensors of one 16-bit dtype for which
/// slow_in(), not empty, without a tangent of forward mode and outside of functorch's transforms
/// and of tracing. Undefined ones do not count. False with DEMI_KERNELS=aten, which leaves all to
/// LibTorch.
DEMI_API bool takes(std::initializer_list<const at::Tensor*> tensors);

}  // namespace demi::products
