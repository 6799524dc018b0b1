#pragma once

#include <cstdint>

namespace demi::kernels {

/// Numbers of few bits that arrays are quantized to: fp8_e4m3 (448 at most, NaN, no Inf), fp8_e5m2
/// (57,344 at most, NaN, Inf), fp4_e2m1 (0, 0.5, 1, 1.5, 2, 3, 4 and 6, two to a byte, the first in
/// the lower half).
enum class NarrowFormat : std::uint8_t { e4m3, e5m2, e2m1 };

/// Which elements of a matrix share a scale, and how the scale follows from their greatest
/// magnitude (amax). "Row": all elements of a row, or of a column where the quantized dimension is
/// the first.
///
/// tensor, row: FP32, as torchao's float8: scale = max / amax, rounded from FP64, with amax at
/// least 1e-12; a code stands for its number divided by the scale. The forms power_of_two round the
/// scale down to a power of two.
///
/// mx_ceil, mx_floor: an E8M0 scale for 32 elements. mx_ceil (NVIDIA's RCEIL): the least power of
/// two that is not below amax / max. mx_floor (OCP Microscaling formats 1.0, section 6.3): the
/// power of two of amax over that of max, so that numbers between the two saturate.
///
/// block_128, square_128: FP32, as of a row, for 128 elements or for 128 x 128 (DeepSeek-V3
/// technical report, section 3.3.2, whose scales are 1 over these).
///
/// nv, nv_square, nv_torchao: NVFP4, an E4M3 scale for 16 elements, or for 16 x 16, times an FP32
/// one of the tensor. nv and nv_square round as TransformerEngine, nv_torchao as torchao, whose
/// scales are not below 2^-6.
///
/// A square block has the same scale and codes whichever dimension is quantized.
enum class Scaling : std::uint8_t {
  tensor,                  // FP32, one for all
  tensor_power_of_two,     // the same, a power of two
  row,                     // FP32, one for a row or a column
  row_power_of_two,        // the same, a power of two
  mx_ceil,                 // E8M0 for 32 elements, NVIDIA's RCEIL
  mx_floor,                // E8M0 for 32 elements, OCP 1.0
  nv,                      // E4M3 for 16 elements and FP32 for all, TransformerEngine's
  nv_torchao,              // the same, torchao's
  nv_square,               // E4M3 for 16 x 16 elements and FP32 for all, TransformerEngine's
  block_128,               // FP32 for 128 elements
  block_128_power_of_two,  // the same, a power of two
  square_128,              // FP32 for 128 x 128 elements
  square_128_power_of_two  // the same, a power of two
};

/// Neighbours that share a scale, in both dimensions if is_square(); 0: all of the tensor, or of
/// the row.
static constexpr int block_of(Scaling scaling) {
  switch (scaling) {
    case Scaling::mx_ceil:
    case Scaling::mx_floor:
      return 32;
    case Scaling::nv:
    case Scaling::nv_torchao:
    case Scaling::nv_square:
      return 16;
    case Scaling::block_128:
    case Scaling::block_128_power_of_two:
    case Scaling::square_128:
    case Scaling::square_128_power_of_two:
      return 128;
    default:
      return 0;
  }
}
/// Whether blocks have as many rows as columns.
static constexpr bool is_square(Scaling scaling) {
  return scaling == Scaling::nv_square || scaling == Scaling::square_128 ||
         scaling == Scaling::square_128_power_of_two;
}
/// Whether the tensor has one scale.
static constexpr bool is_of_tensor(Scaling scaling) {
  return scaling == Scaling::tensor || scaling == Scaling::tensor_power_of_two;
}
/// Whether a row, or a column, has one scale.
static constexpr bool is_of_rows(Scaling scaling) {
  return scaling == Scaling::row || scaling == Scaling::row_power_of_two;
}
/// Whether it is NVFP4 in one of its forms.
static constexpr bool is_nv(Scaling scaling) { return block_of(scaling) == 16; }
/// Whether scales are FP32 numbers, by which the numbers of codes are divided. Others have 8 bits.
static constexpr bool has_fp32_scales(Scaling scaling) {
  return block_of(scaling) == 0 || block_of(scaling) == 128;
}
/// Whether an FP32 scale is rounded down to a power of two.
static constexpr bool rounds_to_power_of_two(Scaling scaling) {
  return scaling == Scaling::tensor_power_of_two || scaling == Scaling::row_power_of_two ||
         scaling == Scaling::block_128_power_of_two || scaling == Scaling::square_128_power_of_two;
}
/// Whether the greatest magnitude of the whole tensor is needed first.
static constexpr bool needs_greatest_of_tensor(Scaling scaling) {
  return is_of_tensor(scaling) || is_nv(scaling);
}

/// Bytes of the codes of `columns` neighbours.
static constexpr std::int64_t code_bytes(NarrowFormat format, std::int64_t columns) {
  return format == NarrowFormat::e2m1 ? (columns + 1) / 2 : columns;
}

}  // namespace demi::kernels
