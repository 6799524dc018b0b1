#pragma once

#include <cstdint>

#include "demi/core/export.h"
#include "demi/kernels/codecs/codec.h"
#include "demi/kernels/quantized.h"
#include "demi/kernels/storage.h"

namespace demi::kernels {

/// A matrix and its codes. Elements that share a scale are neighbours in a row or, with `down`, in
/// a column. A last block that is not full counts as filled up with zeros. Arrays are dense.
struct Quantization {
  NarrowFormat format;
  Scaling scaling;
  bool down;
  std::int64_t rows, columns;

  const void* from;  // what is quantized, (rows, columns) of `storage`
  void* to;          // what dequantizing writes, likewise
  Storage storage;
  std::uint8_t* codes;  // (rows, code_bytes(columns)); an odd row of E2M1 ends with 0

  /// E8M0 and E4M3: (rows, blocks in a row), or (blocks in a column, columns). FP32: (rows),
  /// (columns), or one of the tensor.
  void* scales;
  float* tensor_scale;      // of NVFP4: one, by which the block scales are multiplied
  std::uint32_t* greatest;  // what greatest_pieces() makes

  /// Rounded by chance, with these bits, if `by_chance`; else to nearest, ties to even.
  bool by_chance;
  RoundingKey key;
};

/// The random bits of element (row, column) are those of this number: the same in both directions,
/// and vectors begin where groups of 32 do.
static constexpr std::int64_t first_draw(const Quantization& q, std::int64_t row) {
  return row * ((q.columns + kCodeGroup - 1) / kCodeGroup * kCodeGroup);
}

/// Blocks of a row, or of a column.
static constexpr std::int64_t blocks_along(const Quantization& q) {
  const std::int64_t length = q.down ? q.rows : q.columns, block = block_of(q.scaling);
  return block ? (length + block - 1) / block : 1;
}

/// Scales of an array.
static constexpr std::int64_t scales_of(const Quantization& q) {
  if (is_of_tensor(q.scaling)) return 1;
  return (q.down ? q.columns : q.rows) * blocks_along(q);
}

/// Pieces of the work, which are independent of each other. How they are shared among threads
/// changes no bit.
DEMI_API std::int64_t pieces_of(const Quantization& q);

}  // namespace demi::kernels
