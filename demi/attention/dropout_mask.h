#pragma once

#include <ATen/core/Tensor.h>

#include "demi/attention/problem.h"
#include "demi/core/export.h"

namespace demi::sdpa {

/// A block of the weights: where it begins in a problem of H heads.
struct BlockStart {
  std::int64_t row, head, query;  // of n, h, i; j begins at 0
  std::int64_t heads;             // H
};

/// 0 for each weight that is dropped, else 1 / (1 - p). `sizes` (n, h, i, j); FP32 or FP64. Random
/// bits: Philox4x32-10, four keys j to a counter.
DEMI_API at::Tensor dropout_mask(at::IntArrayRef sizes, at::ScalarType dtype,
                                 const Dropout& dropout, BlockStart start);

}  // namespace demi::sdpa
