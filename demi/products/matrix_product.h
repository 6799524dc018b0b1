#pragma once

#include <ATen/core/Tensor.h>

#include "demi/core/export.h"

namespace demi::products {

/// round(beta addend + alpha a b), summed in FP32 and rounded once to the 16-bit dtype of a and b:
/// a (m, k), b (k, n), or a batch of each, (batch, m, k) and (batch, k, n). `addend` is undefined,
/// or of the same dtype and broadcast to the result. Tensors must not be empty. Differentiable any
/// number of times in reverse mode; backward consists of such products, too.
DEMI_API at::Tensor matrix_product(const at::Tensor& addend, const at::Tensor& a,
                                   const at::Tensor& b, double beta = 1, double alpha = 1);

}  // namespace demi::products
