#pragma once

#include <ATen/core/Tensor.h>

#include <optional>

#include "demi/quantization/quantization.h"
#include "demi/quantization/recipe.h"

namespace demi::quantization {

/// Numbers that stand for an operand: `values` times `factor`, in FP32.
struct Factored {
  at::Tensor
      values;  // of the operand's sizes, with as few bits as the format has, or scaled in FP32
  at::Tensor factor;  // (1), or one for each row or column that is not summed over; undefined: 1
};

/// What quantize() takes for an operand. `down`: the product sums over the rows.
Options options_of(const Operand& operand, bool down);

/// The numbers that a product reads. With `in_bf16` in bf16 where that holds them, which is
/// everywhere but with has_fp32_blocks(): codes have 4 digits at most, scales of 8 bits too.
/// (Where a block's scale makes numbers below FP32's normal range, bf16 rounds them.)
Factored factored(const Quantized& quantized, bool in_bf16);

/// Whether scales are FP32 ones of blocks, which differ within a sum.
inline bool has_fp32_blocks(const Quantized& quantized) {
  return kernels::has_fp32_scales(quantized.scaling) && kernels::block_of(quantized.scaling) != 0;
}

/// The numbers of codes with FP32 scales of blocks, in bf16, and what each slice's sums are
/// multiplied by: (n, slices), n the rows or columns that are not summed over, a slice a block of
/// the others.
Factored sliced(const Quantized& quantized);

/// The matrix (rows, columns) quantized for a product: its Hadamard transform first, if the operand
/// says so.
Quantized quantize_operand(const at::Tensor& matrix, const Operand& operand, bool down,
                           const std::optional<RandomRounding>& by_chance);

}  // namespace demi::quantization
