#pragma once

#include <cstdint>

#include "demi/kernels/batch_norm.h"
#include "demi/kernels/host_device.h"

// What the passes of batch_norm.h do at a time. Internal linkage.
namespace demi::kernels {
namespace {

DEMI_HOST_DEVICE constexpr std::int64_t lesser(std::int64_t a, std::int64_t b) {
  return b < a ? b : a;
}
DEMI_HOST_DEVICE constexpr std::int64_t greater(std::int64_t a, std::int64_t b) {
  return a < b ? b : a;
}

DEMI_HOST_DEVICE constexpr std::int64_t pieces(std::int64_t n, std::int64_t length) {
  return (n + length - 1) / length;
}
DEMI_HOST_DEVICE std::int64_t pixels(const BatchNorm& norm) {
  return norm.images * norm.height * norm.width;
}

/// Pixels of a piece, channels last: some 32 thousand elements, and enough pixels to a row of sums.
DEMI_HOST_DEVICE std::int64_t pixels_of_piece(const BatchNorm& norm) {
  return lesser(512, greater(64, 32768 / norm.channels));
}

/// As pixels_of_row().
DEMI_HOST_DEVICE std::int64_t pixels_in_row(const BatchNorm& norm, std::int64_t row) {
  if (!norm.channels_last) return norm.height * norm.width;
  return lesser(pixels_of_piece(norm), pixels(norm) - row * pixels_of_piece(norm));
}

/// Whether gradient_sums and backward look up the windows of the pooling. Behind a sum the first
/// one writes the gradients that they give, and backward reads these.
DEMI_HOST_DEVICE bool reads_windows(const BatchNorm& norm) {
  return norm.pool.any() && !norm.add_gradient;
}

/// Lines of the pooled result in a piece of gradient_sums.
DEMI_HOST_DEVICE std::int64_t lines_of_piece(const BatchNorm& norm) {
  return greater(1, pixels_of_piece(norm) / norm.pool.width);
}

/// Rows of sums of the two passes that have any.
DEMI_HOST_DEVICE std::int64_t statistics_rows(const BatchNorm& norm) {
  return norm.channels_last ? pieces(pixels(norm), pixels_of_piece(norm)) : norm.images;
}
DEMI_HOST_DEVICE std::int64_t gradient_rows(const BatchNorm& norm) {
  if (!norm.channels_last || !reads_windows(norm)) return statistics_rows(norm);
  return pieces(norm.images * norm.pool.height, lines_of_piece(norm));
}

}  // namespace
}  // namespace demi::kernels
