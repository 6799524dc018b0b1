#pragma once

#include <ATen/core/Tensor.h>

#include "demi/core/export.h"

namespace demi::products {

/// round(beta addend + alpha a b), summed in FP32 and rounded once to the dtype of a and b, 16 bits
/// or FP32: a (m, k), b (k, n), or a batch of each, (batch, m, k) and (batch, k, n). The number of
/// threads changes no bit, except of tensors that are LibTorch's to multiply: a batch of vmap, a
/// 16-bit dtype that is not slow_in(), all with DEMI_KERNELS=aten. `addend` is undefined,
/// or of the same dtype and broadcast to the result. Tensors must not be empty. Differentiable any
/// number of times in reverse mode; backward consists of such products, too.
DEMI_API at::Tensor matrix_product(const at::Tensor& addend, const at::Tensor& a,
                                   const at::Tensor& b, double beta = 1, double alpha = 1);

/// matrix_product() of which the caller knows that the result is symmetric, as a aᵀ and the square
/// of a symmetric matrix are, with an addend that is. The same bits; in FP32 about half the time,
/// since the numbers below the diagonal are copies. A result that is not symmetric comes out wrong.
DEMI_API at::Tensor symmetric_product(const at::Tensor& addend, const at::Tensor& a,
                                      const at::Tensor& b, double beta = 1, double alpha = 1);

}  // namespace demi::products
