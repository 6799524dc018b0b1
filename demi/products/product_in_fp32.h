#pragma once

#include <ATen/core/Tensor.h>

#include "demi/core/export.h"

namespace demi::products {

/// a b in FP32 of matrices a (m, k) and b (k, n) of bf16 or FP32, both of one dtype: products of
/// two bf16 numbers are exact, and sums are FP32 and not rounded to 16 bits. (LibTorch's own
/// product of bf16 on a CPU rounds its result to bf16.) By the processor's bf16 instructions if it
/// has some that are not slow, on CUDA by LibTorch, elsewhere by an FP32 product of the same
/// numbers. The order of the sums differs between these, and does not depend on the number of
/// threads with the processor's instructions, which read numbers below FP32's normal range as 0.
/// No gradient passes; does not synchronise.
DEMI_API at::Tensor product_in_fp32(const at::Tensor& a, const at::Tensor& b);

}  // namespace demi::products
