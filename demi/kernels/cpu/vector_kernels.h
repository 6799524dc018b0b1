#pragma once

#include "demi/kernels/cpu/add_norm.h"
#include "demi/kernels/cpu/arrays.h"
#include "demi/kernels/cpu/batch_norm.h"
#include "demi/kernels/cpu/exponents.h"
#include "demi/kernels/cpu/gelu.h"
#include "demi/kernels/cpu/lstm.h"
#include "demi/kernels/cpu/passes.h"
#include "demi/kernels/cpu/product.h"
#include "demi/kernels/cpu/quantize.h"
#include "demi/kernels/cpu_kernels.h"

namespace demi::kernels {
namespace {

/// The functions of the instruction set that the including file is compiled for. Internal linkage.
constexpr CpuKernels vector_kernels(Path path) {
  return {.path = path,
          .measure = measure_pass,
          .update = update_pass,
          .apply_trust = apply_trust_pass,
          .narrow = narrow_array,
          .widen = widen_array,
          .unscale = unscale_array,
          .lerp = lerp_array,
          .count_exponents = count_exponents_of,
          .lstm_forward = lstm_forward_step,
          .lstm_backward = lstm_backward_step,
          .gelu = gelu_array,
          .gelu_gradient = gelu_gradient_array,
          .multiply = multiply_matrices,
          .quantize = quantize_pieces_by<WordVector>,
          .dequantize = dequantize_pieces_by<WordVector>,
          .greatest_magnitude = greatest_magnitude_by<WordVector>,
          .raise_greatest_of_columns = raise_greatest_of_columns_by<WordVector>,
          .batch_norm = batch_norm_pieces<Vector>,
          .add_norm = add_norm_pieces<Vector>};
}

}  // namespace
}  // namespace demi::kernels
