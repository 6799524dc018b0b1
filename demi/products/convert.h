#pragma once

#include <ATen/core/Tensor.h>

namespace demi::products {

/// An uninitialised FP32 tensor with the shape and the memory order of `like`: a matrix by columns
/// if its columns are dense, else by rows; other tensors with `like`'s strides if these are dense.
at::Tensor fp32_like(const at::Tensor& like);

/// to = from, for tensors of one shape: 16-bit to FP32, exactly, or FP32 to 16-bit, to nearest,
/// ties to even. Any strides. Has a fast loop if both are dense in one order, and for matrices if
/// the rows of both are dense, or the columns of both, such as parts of matrices, for which copy_()
/// has no fast loop.
void convert(const at::Tensor& to, const at::Tensor& from);

/// Converts one piece of a larger tensor after another to FP32, in one memory that stays in the
/// cache.
class Widened {
 public:
  /// The piece in FP32. Valid until the next call.
  const at::Tensor& operator()(const at::Tensor& piece);

 private:
  at::Tensor held_;
};

}  // namespace demi::products
