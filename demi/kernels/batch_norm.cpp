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
  if (!norm.channels_last) return norm.images;
  if (reads_windows(norm) && pass == BatchNormPass::gradient_sums)
    return pieces(norm.images * norm.pool.height, lines_of_piece(norm));
  return pieces(pixels(norm), pixels_of_piece(norm));
}

std::int64_t pixels_of_row(const BatchNorm& norm, std::int64_t row) {
  if (!norm.channels_last) return norm.height * norm.width;
  return lesser(pixels_of_piece(norm), pixels(norm) - row * pixels_of_piece(norm));
}

}  // namespace demi::kernels
