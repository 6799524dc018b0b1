#include "demi/quantization/operand.h"

#include <ATen/ops/ones_like.h>
#include <ATen/ops/reciprocal.h>
#include <ATen/ops/repeat_interleave.h>

#include "demi/quantization/hadamard.h"

namespace demi::quantization {

Options options_of(const Operand& operand, bool down) {
  return {.format = operand.format, .scaling = operand.scaling, .down = down};
}

Factored factored(const Quantized& quantized, bool in_bf16) {
  using kernels::is_nv, kernels::is_of_rows, kernels::is_of_tensor;
  const bool is_of_blocks =
      kernels::has_fp32_scales(quantized.scaling) && kernels::block_of(quantized.scaling) != 0;
  const at::ScalarType dtype = in_bf16 && !is_of_blocks ? at::kBFloat16 : at::kFloat;
  Quantized bare = quantized;
  at::Tensor factor;
  if (is_of_tensor(quantized.scaling) || is_of_rows(quantized.scaling)) {
    bare.scales = at::ones_like(quantized.scales);
    factor = quantized.scales.reciprocal();
  } else if (is_nv(quantized.scaling)) {
    bare.tensor_scale = at::ones_like(quantized.tensor_scale);
    factor = quantized.tensor_scale;
  }
  return {dequantize(bare, dtype), factor};
}

Factored sliced(const Quantized& quantized) {
  Quantized bare = quantized;
  bare.scales = at::ones_like(quantized.scales);
  at::Tensor factor = quantized.scales.reciprocal();
  if (quantized.down) factor = factor.t();
  if (kernels::is_square(quantized.scaling)) {
    const std::int64_t n = quantized.codes.size(quantized.down ? 1 : 0);
    factor = factor.repeat_interleave(kernels::block_of(quantized.scaling), 0).narrow(0, 0, n);
  }
  return {dequantize(bare, at::kBFloat16), factor};
}

Quantized quantize_operand(const at::Tensor& matrix, const Operand& operand, bool down,
                           const std::optional<RandomRounding>& by_chance) {
  Options options = options_of(operand, down);
  if (operand.by_chance) options.by_chance = by_chance;
  return quantize(operand.hadamard ? hadamard(matrix, down) : matrix, options);
}

}  // namespace demi::quantization
