#include "demi/kernels/batch_norm.h"

#include "demi/kernels/batch_norm_pieces.h"

namespace demi::kernels {

std::int64_t pieces_of(const BatchNorm& norm, BatchNormPass pass) {
  if (!norm.channels_last) return norm.images * norm.channels;
  if (norm.pool.any() && pass == BatchNormPass::forward) return norm.images * norm.pool.height;
  if (reads_windows(norm) && pass == BatchNormPass::backward) return norm.images * norm.height;
  return sum_rows(norm, pass);
}

std::int64_t sum_rows(const BatchNorm& norm, BatchNormPass pass) {
  return pass == BatchNormPass::gradient_sums ? gradient_rows(norm) : statistics_rows(norm);
}

std::int64_t pixels_of_row(const BatchNorm& norm, std::int64_t row) {
  return pixels_in_row(norm, row);
}

}  // namespace demi::kernels
