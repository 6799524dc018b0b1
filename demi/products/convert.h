#pragma once

#include <ATen/core/Tensor.h>

namespace demi::products {

/// FP32 memory of that shape and of `like`'s order in memory: a matrix by columns where its columns
/// are dense, else by rows; others dense with `like`'s strides where these are dense.
at::Tensor fp32_like(const at::Tensor& like);

/// to = from, tensors of one shape: 16-bit to FP32, exactly, or FP32 to 16-bit, to nearest, ties to
/// even. Any strides; fast where both are dense in one order, and for matrices where the rows of
/// both are dense, or the columns, as parts of matrices are that copy_() has no fast loop for.
void convert(const at::Tensor& to, const at::Tensor& from);

/// FP32 numbers of one piece after another of a larger tensor, in memory that stays in the cache.
class Widened {
 public:
  /// Valid until the next call.
  const at::Tensor& operator()(const at::Tensor& piece);

 private:
  at::Tensor held_;
};

}  // namespace demi::products
