#pragma once

#include <ATen/core/Tensor.h>

#include <optional>

#include "demi/quantization/quantization.h"
#include "demi/quantization/recipe.h"

namespace demi::quantization {

/// Numbers that stand for an operand in FP32: `values` times `factor`.
struct Factored {
  at::Tensor values;  // of the operand's sizes, as few bits as the format has, or scaled in FP32
  at::Tensor factor;  // (1), or one for each row or column that is not summed over; undefined: 1
};

/// What quantize() takes for an operand. `down`: the product sums over the rows.
Options options_of(const Operand& operand, bool down);

/// The numbers that a product reads.
Factored factored(const Quantized& quantized);

/// The matrix (rows, columns) quantized for a product: its Hadamard transform first, if the operand
/// says so.
Quantized quantize_operand(const at::Tensor& matrix, const Operand& operand, bool down,
                           const std::optional<RandomRounding>& by_chance);

}  // namespace demi::quantization
