#include "demi/quantization/operand.h"

#include <ATen/ops/ones_like.h>
#include <ATen/ops/reciprocal.h>

#include "demi/quantization/hadamard.h"

namespace demi::quantization {

Options options_of(const Operand& operand, bool down) {
  return {.format = operand.format, .scaling = operand.scaling, .down = down};
}

Factored factored(const Quantized& quantized) {
  using kernels::is_nv, kernels::is_of_rows, kernels::is_of_tensor;
  Quantized bare = quantized;
  if (is_of_tensor(quantized.scaling) || is_of_rows(quantized.scaling)) {
    bare.scales = at::ones_like(quantized.scales);
    return {dequantize(bare), quantized.scales.reciprocal()};
  }
  if (is_nv(quantized.scaling)) {
    bare.tensor_scale = at::ones_like(quantized.tensor_scale);
    return {dequantize(bare), quantized.tensor_scale};
  }
  return {dequantize(bare), {}};
}

Quantized quantize_operand(const at::Tensor& matrix, const Operand& operand, bool down,
                           const std::optional<RandomRounding>& by_chance) {
  Options options = options_of(operand, down);
  if (operand.by_chance) options.by_chance = by_chance;
  return quantize(operand.hadamard ? hadamard(matrix, down) : matrix, options);
}

}  // namespace demi::quantization
