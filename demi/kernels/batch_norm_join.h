#pragma once

#include <cmath>
#include <cstdint>

#include "demi/kernels/batch_norm.h"
#include "demi/kernels/batch_norm_pieces.h"
#include "demi/kernels/host_device.h"

// What follows from the sums of batch_norm.h's passes, in FP64: the formulas of one row of sums and
// of one channel, for the loops of a CPU and the threads of a device.
//
// The order in which rows are joined, the same everywhere: row r belongs to lane r % kJoinLanes,
// whose rows are added in their order; then the lanes are added by halving, where both are there.
//
// Internal linkage.
namespace demi::kernels {

inline constexpr std::int64_t kJoinLanes = 32;

namespace {

DEMI_HOST_DEVICE std::int64_t lanes_of(std::int64_t rows) { return lesser(rows, kJoinLanes); }

/// A row of the statistics' sums.
struct RowOfSums {
  const float* near;  // then the sums of differences, then those of their squares
  std::int64_t channels;
  double count, share;  // pixels, and 1 of them
};
DEMI_HOST_DEVICE RowOfSums row_of(const BatchNorm& norm, std::int64_t row) {
  const auto count = static_cast<double>(pixels_in_row(norm, row));
  return {norm.sums + row * 3 * norm.channels, norm.channels, count, 1 / count};
}

/// One channel of a row: a part of the whole.
struct PartOfChannel {
  double count, mean, squares;  // squares: of the differences from the mean, summed up
};
DEMI_HOST_DEVICE PartOfChannel part_of(const RowOfSums& row, std::int64_t c) {
  const float* const near = row.near + c;
  const double sum = near[row.channels], squares = near[2 * row.channels];
  return {row.count, *near + sum * row.share, squares - sum * sum * row.share};
}

// The parts' means and squares give the whole's as in Chan, Golub and LeVeque 1979, equation 2.1,
// for many parts at once: M2 = sum of M2_i + n_i (mean_i - mean)^2.
DEMI_HOST_DEVICE double term_of_mean(const PartOfChannel& part) { return part.count * part.mean; }
DEMI_HOST_DEVICE double term_of_squares(const PartOfChannel& part, double mean) {
  const double apart = part.mean - mean;
  return part.squares + part.count * apart * apart;
}

DEMI_HOST_DEVICE void put_channel(const BatchNorm& norm, const ChannelStatistics& to,
                                  std::int64_t c, double mean, double variance) {
  const auto inverse = static_cast<float>(1 / sqrt(variance + to.eps));
  to.channels[c] = static_cast<float>(mean);
  to.channels[norm.channels + c] = inverse;
  to.channels[2 * norm.channels + c] = inverse * (to.weight ? to.weight[c] : 1.0f);
  to.channels[3 * norm.channels + c] = to.bias ? to.bias[c] : 0.0f;
}

/// Of the batch, whose `squares` are the differences' from its mean; the running statistics move.
DEMI_HOST_DEVICE void put_statistics(const BatchNorm& norm, const ChannelStatistics& to,
                                     std::int64_t c, double mean, double squares) {
  const auto count = static_cast<double>(pixels(norm));
  put_channel(norm, to, c, mean, squares / count);
  const double kept = 1 - to.momentum;
  if (to.running_mean)
    to.running_mean[c] = static_cast<float>(kept * to.running_mean[c] + to.momentum * mean);
  if (to.running_var)
    to.running_var[c] =
        static_cast<float>(kept * to.running_var[c] + to.momentum * (squares / (count - 1)));
}

/// Of the running statistics.
DEMI_HOST_DEVICE void put_given_statistics(const BatchNorm& norm, const ChannelStatistics& to,
                                           std::int64_t c) {
  put_channel(norm, to, c, to.running_mean[c], to.running_var[c]);
}

/// Sums over all pixels of g, and of g (x - mean).
DEMI_HOST_DEVICE void put_gradients(const BatchNorm& norm, const ChannelGradients& to,
                                    std::int64_t c, double gradient, double product) {
  const auto count = static_cast<double>(pixels(norm));
  const double inverse = to.channels[norm.channels + c];
  to.corrections[c] = static_cast<float>(gradient / count);
  to.corrections[norm.channels + c] = static_cast<float>(product / count * inverse * inverse);
  to.weight[c] = static_cast<float>(product * inverse);
  to.bias[c] = static_cast<float>(gradient);
}

}  // namespace
}  // namespace demi::kernels
