#pragma once

#include <cstdint>

#include "demi/kernels/quantize.h"

// How a matrix is divided among threads. Internal linkage.
namespace demi::kernels {
namespace {

/// A part of the matrix that has all elements of its blocks.
struct QuantizeTile {
  std::int64_t first_row, end_row, first_column, end_column;
};

/// Columns of a strip, which lies in the first level cache with its codes. A multiple of 32.
inline constexpr int kStrip = 512;

/// The most columns of a tile whose blocks have several rows. Its rows are read in pieces of that
/// length: memory gives whole rows at twice the rate of pieces of 2 KiB.
inline constexpr int kTileColumns = 4096;

struct TileShape {
  std::int64_t rows, columns, in_row;  // in_row: tiles beside each other
};

constexpr std::int64_t tiles_over(std::int64_t length, std::int64_t tile) {
  return tile > 0 ? (length + tile - 1) / tile : 0;
}

/// About 64 thousand elements, unless a row or a block has more.
constexpr TileShape tile_shape(const Quantization& q) {
  constexpr std::int64_t kElements = 65536;
  TileShape tile{q.rows, q.columns, 1};
  if (!shares_across_rows(q)) {
    if (!is_of_rows(q.scaling) && tile.columns > kElements) tile.columns = kElements;
    tile.rows = tile.columns > 0 && tile.columns < kElements ? kElements / tile.columns : 1;
  } else {
    // More rows of columns with one scale, since each tile divides for it again.
    const std::int64_t block = block_of(q.scaling);
    const std::int64_t band = block == 0 ? 256 : block == 128 ? 128 : 32;
    if (tile.columns > kTileColumns) tile.columns = kTileColumns;
    tile.rows = tile.columns > 0 ? kElements / tile.columns / band * band : band;
    if (tile.rows < band) tile.rows = band;
  }
  tile.in_row = tiles_over(q.columns, tile.columns);
  return tile;
}

constexpr std::int64_t tiles_of(const Quantization& q) {
  const TileShape shape = tile_shape(q);
  return tiles_over(q.rows, shape.rows) * shape.in_row;
}

constexpr QuantizeTile tile_at(const Quantization& q, std::int64_t piece) {
  const TileShape shape = tile_shape(q);
  const std::int64_t row = piece / shape.in_row * shape.rows;
  const std::int64_t column = piece % shape.in_row * shape.columns;
  return {row, row + shape.rows < q.rows ? row + shape.rows : q.rows, column,
          column + shape.columns < q.columns ? column + shape.columns : q.columns};
}

}  // namespace
}  // namespace demi::kernels
