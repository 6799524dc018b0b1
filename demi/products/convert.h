#pragma once

#include <ATen/core/Tensor.h>

namespace demi::products {

/// FP32 memory for a matrix of that shape and of `like`'s order in memory: by columns where its
/// columns are dense, else by rows.
at::Tensor fp32_like(const at::Tensor& like);

/// to = from, matrices of one shape: 16-bit to FP32, exactly, or FP32 to 16-bit, to nearest, ties
/// to even. Any strides; fast where the rows of both are dense, or the columns, as parts of
/// matrices are that copy_() has no fast loop for.
void convert(const at::Tensor& to, const at::Tensor& from);

}  // namespace demi::products
