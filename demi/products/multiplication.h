#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "demi/kernels/product.h"

namespace demi::products {

// The least rows and columns of a task: whole tiles of each path (kernels/cpu/product.h).
inline constexpr std::int64_t kLeastRows = 84, kLeastColumns = 64;

inline std::int64_t ratio_up(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }

struct Scales {
  double beta, alpha;
};

/// out = beta addend + alpha a b, rounded to out's dtype, of matrices or batches of them whose rows
/// or columns are dense. out is contiguous; addend is undefined or of out's sizes in FP32.
using Multiply = void(const at::Tensor& out, const at::Tensor& addend, const at::Tensor& a,
                      const at::Tensor& b, const Scales& scales);

Multiply multiply;

/// The same for a result that is symmetric and FP32: each pair of equal numbers is computed once.
/// The bits are multiply()'s, whose two sums of a pair have the same terms in the same order.
Multiply multiply_symmetric;

}  // namespace demi::products
