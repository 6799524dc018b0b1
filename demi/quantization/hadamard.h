#pragma once

#include <ATen/core/Tensor.h>

#include "demi/core/export.h"

namespace demi::quantization {

/// x H for each 16 neighbours x, where H = diag(signs) times Hadamard's matrix of 16 (Sylvester's)
/// over 4, with TransformerEngine's signs + + + - + - - - - - - + - + - -. H is orthogonal: a
/// product whose two operands are transformed along the dimension that it sums over is the same,
/// and an outlier is spread over its 16, which share a scale afterwards (arXiv 2509.25149).
///
/// `values`: fp32, bf16 or fp16 with one dimension or more, which count as a matrix (rows, columns)
/// whose columns are the last dimension. Neighbours are in a row or, with `down`, in a column. The
/// result is a matrix of the same dtype and device. The transformed length is filled up with zeros
/// to a multiple of 16.
///
/// Sums are FP32 in one order on every device and for any number of threads, rounded once to the
/// dtype. An Inf or NaN makes Inf or NaN of its 16. No gradient passes. Throws UsageError for
/// another dtype and for a tensor without dimensions.
DEMI_API at::Tensor hadamard(const at::Tensor& values, bool down);

}  // namespace demi::quantization
