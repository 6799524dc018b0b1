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
/// nv, nv_torchao: NVFP4, an E4M3 scale for 16 elements, times an FP32 one of the tensor. nv rounds
/// as TransformerEngine, nv_torchao as torchao, whose scales are not below 2^-6.
enum class Scaling : std::uint8_t {
  tensor,               // FP32, one for all
  tensor_power_of_two,  // the same, a power of two
  row,                  // FP32, one for a row or a column
  row_power_of_two,     // the same, a power of two
  mx_ceil,              // E8M0 for 32 elements, NVIDIA's RCEIL
  mx_floor,             // E8M0 for 32 elements, OCP 1.0
  nv,                   // E4M3 for 16 elements and FP32 for all, TransformerEngine's
  nv_torchao            // the same, torchao's
};

/// Elements that share a scale; 0: all of the tensor, or of the row.
static constexpr int block_of(Scaling scaling) {
  switch (scaling) {
    case Scaling::mx_ceil:
    case Scaling::mx_floor:
      return 32;
    case Scaling::nv:
    case Scaling::nv_torchao:
      return 16;
    default:
      return 0;
  }
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
/// Whether the greatest magnitude of the whole tensor is needed first.
static constexpr bool needs_greatest_of_tensor(Scaling scaling) {
  return is_of_tensor(scaling) || is_nv(scaling);
}

/// Bytes of the codes of `columns` neighbours.
static constexpr std::int64_t code_bytes(NarrowFormat format, std::int64_t columns) {
  return format == NarrowFormat::e2m1 ? (columns + 1) / 2 : columns;
}

}  // namespace demi::kernels
