#pragma once

#include <ATen/core/Tensor.h>

#include "demi/core/export.h"

namespace demi::products {

/// The arguments of at::convolution, with one number for each spatial dimension.
struct ConvolutionOptions {
  std::vector<int64_t> stride, padding, dilation;
  bool transposed = false;
  std::vector<int64_t> output_padding;
  int64_t groups = 1;
};

/// at::convolution of 16-bit CPU tensors of one dtype, summed in FP32 and rounded once to that
/// dtype. input (N, C, ...), weight (C_out, C / groups, ...), or (C, C_out / groups, ...) if
/// transposed; `bias` (C_out) may be undefined. Tensors must not be empty. The result has the
/// input's memory format. Differentiable any number of times in reverse mode.
DEMI_API at::Tensor convolution(const at::Tensor& input, const at::Tensor& weight,
                                const at::Tensor& bias, const ConvolutionOptions& options);

}  // namespace demi::products
