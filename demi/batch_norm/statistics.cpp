#include "demi/batch_norm/statistics.h"

#include <ATen/Parallel.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "demi/kernels/cpu_kernels.h"

namespace demi::batch_norm {

using kernels::BatchNormPass;

// Elements that are worth a thread, as LibTorch counts.
constexpr std::int64_t kGrain = 32768;

void run(const kernels::BatchNorm& norm, BatchNormPass pass) {
  const auto* const kernels = kernels::cpu_kernels();
  const std::int64_t pieces = kernels::pieces_of(norm, pass);
  const std::int64_t elements = norm.images * norm.channels * norm.height * norm.width;
  const std::int64_t grain = std::max<std::int64_t>(1, kGrain * pieces / elements);
  at::parallel_for(0, pieces, grain, [&](std::int64_t begin, std::int64_t end) {
    kernels->batch_norm(norm, pass, begin, end);
  });
}

namespace {

/// Runs the pass into new sums, `arrays` of them a row.
std::vector<float> sums_of(kernels::BatchNorm& norm, BatchNormPass pass, std::int64_t arrays) {
  std::vector<float> sums(
      static_cast<std::size_t>(kernels::sum_rows(norm, pass) * arrays * norm.channels));
  norm.sums = sums.data();
  run(norm, pass);
  return sums;
}

}  // namespace

// The parts' means and squares give the whole's as in Chan, Golub and LeVeque 1979, equation 2.1,
// for many parts at once: M2 = sum of M2_i + n_i (mean_i - mean)^2.
Moments moments_of(kernels::BatchNorm norm) {
  const auto sums = sums_of(norm, BatchNormPass::statistics, 3);
  const auto channels = static_cast<std::size_t>(norm.channels);
  const std::int64_t rows = kernels::sum_rows(norm, BatchNormPass::statistics);
  Moments whole{std::vector<double>(channels), std::vector<double>(channels),
                static_cast<double>(norm.images * norm.height * norm.width)};
  const auto each_row = [&](auto act) {
    for (std::int64_t row = 0; row < rows; ++row) {
      const float* const near = sums.data() + static_cast<std::size_t>(row) * 3 * channels;
      const float *const sum = near + channels, *const squares = sum + channels;
      const auto n = static_cast<double>(kernels::pixels_of_row(norm, row));
      const double share = 1 / n;
      for (std::size_t c = 0; c < channels; ++c)
        act(c, n, near[c] + sum[c] * share, squares[c] - double{sum[c]} * sum[c] * share);
    }
  };
  each_row([&](std::size_t c, double n, double mean, double) { whole.mean[c] += n * mean; });
  for (double& mean : whole.mean) mean /= whole.count;
  each_row([&](std::size_t c, double n, double mean, double squares) {
    const double apart = mean - whole.mean[c];
    whole.squares[c] += squares + n * apart * apart;
  });
  return whole;
}

GradientSums gradient_sums_of(kernels::BatchNorm norm) {
  const auto sums = sums_of(norm, BatchNormPass::gradient_sums, 2);
  const auto channels = static_cast<std::size_t>(norm.channels);
  GradientSums whole{std::vector<double>(channels), std::vector<double>(channels)};
  for (std::size_t row = 0; row < sums.size(); row += 2 * channels)
    for (std::size_t c = 0; c < channels; ++c) {
      whole.gradient[c] += sums[row + c];
      whole.product[c] += sums[row + channels + c];
    }
  return whole;
}

}  // namespace demi::batch_norm
