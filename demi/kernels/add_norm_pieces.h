#pragma once

#include <cstdint>

#include "demi/kernels/add_norm.h"

// What the passes of add_norm.h do at a time. Internal linkage.
namespace demi::kernels {
namespace {

/// Rows of a piece: some 32 thousand elements, and enough rows to a row of sums.
inline std::int64_t rows_of_piece(const AddNorm& norm) {
  const std::int64_t rows = 32768 / norm.width;
  return rows < 64 ? 64 : rows > 512 ? 512 : rows;
}

/// The first row of a piece; of the piece behind the last: the number of rows.
inline std::int64_t first_row(const AddNorm& norm, std::int64_t piece) {
  const std::int64_t row = piece * rows_of_piece(norm);
  return row < norm.rows ? row : norm.rows;
}

}  // namespace
}  // namespace demi::kernels
