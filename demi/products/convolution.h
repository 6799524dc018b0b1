#pragma once

#include <ATen/core/Tensor.h>

#include "demi/core/export.h"

namespace demi::products {

struct ConvolutionOptions {
  std::vector<int64_t> stride, padding, dilation;
  bool transposed = false;
  std::vector<int64_t> output_padding;
  int64_t groups = 1;
};

/// at::convolution of 16-bit tensors with the sums in FP32 and one rounding to their dtype. `bias`
/// may be undefined. Keeps the memory format. Not empty. Differentiable any number of times in
/// reverse mode.
DEMI_API at::Tensor convolution(const at::Tensor& input, const at::Tensor& weight,
                                const at::Tensor& bias, const ConvolutionOptions& options);

}  // namespace demi::products
