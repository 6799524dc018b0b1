#pragma once

#include <cstdint>

#include "demi/core/export.h"
#include "demi/kernels/codecs/codec.h"
#include "demi/kernels/quantized.h"
#include "demi/kernels/storage.h"

namespace demi::kernels {

/// A matrix and its codes. Elements that share a scale are neighbours in a row, with `down` in a
/// column, or in both, where `down` changes nothing. A last block that is not full counts as filled
/// up with zeros. Arrays are dense.
struct Quantization {
  NarrowFormat format;
  Scaling scaling;
  bool down;
  std::int64_t rows, columns;

  const void* from;  // what is quantized, (rows, columns) of `storage`
  void* to;          // what dequantizing writes, likewise
  Storage storage;
  std::uint8_t* codes;  // (rows, code_bytes(columns)); an odd row of E2M1 ends with 0

  /// E8M0, E4M3 or FP32, of grid_of().
  void* scales;
  float* tensor_scale;  // of NVFP4: one, by which the block scales are multiplied
  /// The bits of the greatest magnitude of the tensor where needs_greatest_of_tensor(), and of each
  /// column where needs_greatest_of_columns(). A device makes greatest_words() itself.
  std::uint32_t* greatest;

  /// Rounded by chance, with these bits, if `by_chance`; else to nearest, ties to even.
  bool by_chance;
  RoundingKey key;
};

/// The random bits of element (row, column) are those of this number: the same in both directions,
/// and vectors begin where groups of 32 do.
static constexpr std::int64_t first_draw(const Quantization& q, std::int64_t row) {
  return row * ((q.columns + kCodeGroup - 1) / kCodeGroup * kCodeGroup);
}

/// Whether each column has scales of its own.
static constexpr bool is_by_columns(const Quantization& q) {
  return q.down && !is_of_tensor(q.scaling) && !is_square(q.scaling);
}

/// Whether elements of different rows share a scale.
static constexpr bool shares_across_rows(const Quantization& q) {
  return is_by_columns(q) || is_square(q.scaling);
}

/// Whether each column has one scale, so that the greatest magnitudes are needed first.
static constexpr bool needs_greatest_of_columns(const Quantization& q) {
  return is_of_rows(q.scaling) && q.down;
}
/// Words for them: vectors raise whole groups.
static constexpr std::int64_t greatest_of_columns_words(const Quantization& q) {
  return (q.columns + kCodeGroup - 1) / kCodeGroup * kCodeGroup;
}

/// Blocks of a line of `length` elements; 0 for `block`: the line has one scale.
static constexpr std::int64_t blocks_over(std::int64_t length, std::int64_t block) {
  return block != 0 ? (length + block - 1) / block : 1;
}

/// The elements that share a scale, and the scales as a matrix.
struct ScaleGrid {
  std::int64_t block_rows, block_columns, rows, columns;

  /// The scale of an element among them.
  constexpr std::int64_t place(std::int64_t row, std::int64_t column) const {
    return row / block_rows * columns + column / block_columns;
  }
};
static constexpr ScaleGrid grid_of(const Quantization& q) {
  const std::int64_t block = block_of(q.scaling), line = is_by_columns(q) ? q.rows : q.columns;
  if (is_of_tensor(q.scaling)) return {q.rows, q.columns, 1, 1};
  const std::int64_t length = block != 0 ? block : line, blocks = blocks_over(line, block);
  if (is_square(q.scaling)) return {length, length, blocks_over(q.rows, block), blocks};
  if (is_by_columns(q)) return {length, 1, blocks, q.columns};
  return {1, length, q.rows, blocks};
}
/// Scales of an array.
static constexpr std::int64_t scales_of(const Quantization& q) {
  return grid_of(q).rows * grid_of(q).columns;
}

/// Whether a device finds the greatest magnitude of each scale first, with all its threads.
static constexpr bool finds_greatest_of_scales(const Quantization& q) {
  return has_fp32_scales(q.scaling) || is_square(q.scaling);
}
/// Words of `greatest` on a device: of the tensor, where it is needed, and then of each scale.
static constexpr std::int64_t first_greatest_of_scales(const Quantization& q) {
  return is_nv(q.scaling) ? 1 : 0;
}
static constexpr std::int64_t greatest_words(const Quantization& q) {
  return first_greatest_of_scales(q) + (finds_greatest_of_scales(q) ? scales_of(q) : 0);
}

/// Pieces of the work, which are independent of each other. How they are shared among threads
/// changes no bit.
DEMI_API std::int64_t pieces_of(const Quantization& q);

}  // namespace demi::kernels
