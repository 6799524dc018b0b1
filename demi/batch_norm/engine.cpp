#include "demi/batch_norm/engine.h"

#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "demi/kernels/batch_norm_join.h"
#include "demi/tensor/native_stream.h"

namespace demi::batch_norm {

using kernels::BatchNormPass;

namespace {

// Elements that are worth a thread, as LibTorch counts.
constexpr std::int64_t kGrain = 32768;

void require_launched(const char* complaint) {
  TORCH_CHECK(!complaint, "demi::batch_norm_relu: CUDA says: ", complaint);
}

/// Sums of each channel over rows of sums, in the order of batch_norm_join.h.
class Joined {
 public:
  Joined(std::int64_t rows, std::int64_t channels)
      : rows_(rows),
        channels_(channels),
        lanes_(static_cast<std::size_t>(kernels::lanes_of(rows) * channels)) {}

  /// of_row(row)(c) is a term. Once.
  template <class OfRow>
  const double* sum(OfRow of_row) {
    for (std::int64_t row = 0; row < rows_; ++row) {
      double* const to = lane(row % kernels::kJoinLanes);
      const auto term = of_row(row);
      for (std::int64_t c = 0; c < channels_; ++c) to[c] += term(c);
    }
    for (std::int64_t half = kernels::kJoinLanes / 2; half > 0; half /= 2)
      for (std::int64_t l = 0; l < half && l + half < kernels::lanes_of(rows_); ++l)
        for (std::int64_t c = 0; c < channels_; ++c) lane(l)[c] += lane(l + half)[c];
    return lanes_.data();
  }

 private:
  double* lane(std::int64_t l) { return lanes_.data() + l * channels_; }

  std::int64_t rows_, channels_;
  std::vector<double> lanes_;
};

void run_on_cpu(const kernels::CpuKernels& kernels, const kernels::BatchNorm& norm,
                BatchNormPass pass) {
  const std::int64_t pieces = kernels::pieces_of(norm, pass);
  const std::int64_t elements = norm.images * norm.channels * norm.height * norm.width;
  const std::int64_t grain = std::max<std::int64_t>(1, kGrain * pieces / elements);
  at::parallel_for(0, pieces, grain, [&](std::int64_t begin, std::int64_t end) {
    kernels.batch_norm(norm, pass, begin, end);
  });
}

void join_on_cpu(const kernels::BatchNorm& norm, const kernels::ChannelStatistics& to) {
  const std::int64_t rows = kernels::sum_rows(norm, BatchNormPass::statistics);
  Joined means(rows, norm.channels), squares(rows, norm.channels);
  const double* const sums = means.sum([&](std::int64_t row) {
    return [of = kernels::row_of(norm, row)](std::int64_t c) {
      return kernels::term_of_mean(kernels::part_of(of, c));
    };
  });
  const auto count = static_cast<double>(kernels::pixels(norm));
  std::vector<double> all(sums, sums + norm.channels);
  for (double& mean : all) mean /= count;
  const double* const mean = all.data();
  const double* const apart = squares.sum([&](std::int64_t row) {
    return [mean, of = kernels::row_of(norm, row)](std::int64_t c) {
      return kernels::term_of_squares(kernels::part_of(of, c), mean[c]);
    };
  });
  for (std::int64_t c = 0; c < norm.channels; ++c)
    kernels::put_statistics(norm, to, c, mean[c], apart[c]);
}

void join_on_cpu(const kernels::BatchNorm& norm, const kernels::ChannelGradients& to) {
  const std::int64_t rows = kernels::sum_rows(norm, BatchNormPass::gradient_sums);
  Joined gradients(rows, norm.channels), products(rows, norm.channels);
  const auto numbers = [&](std::int64_t which) {
    return [&, which](std::int64_t row) {
      return [of = norm.sums + (row * 2 + which) * norm.channels](std::int64_t c) { return of[c]; };
    };
  };
  const double* const gradient = gradients.sum(numbers(0));
  const double* const product = products.sum(numbers(1));
  for (std::int64_t c = 0; c < norm.channels; ++c)
    kernels::put_gradients(norm, to, c, gradient[c], product[c]);
}

}  // namespace

Passes::Passes(const Engine& engine, const at::Tensor& like)
    : engine_(engine),
      options_(like.options().dtype(at::kFloat)),
      guard_(like.is_cpu() ? std::nullopt : std::optional(like.device())),
      stream_(engine.device ? tensor::native_stream(like.device()) : nullptr) {}

at::Tensor Passes::floats(at::IntArrayRef shape) const { return at::empty(shape, options_); }

void Passes::run(const kernels::BatchNorm& norm, BatchNormPass pass) const {
  if (engine_.cpu) return run_on_cpu(*engine_.cpu, norm, pass);
  require_launched(engine_.device->batch_norm(norm, pass, kernels::pieces_of(norm, pass), stream_));
}

void Passes::statistics(kernels::BatchNorm norm, const kernels::ChannelStatistics& to,
                        bool of_batch) const {
  at::Tensor sums;
  if (of_batch) {
    sums = floats({kernels::sum_rows(norm, BatchNormPass::statistics), 3, norm.channels});
    norm.sums = sums.mutable_data_ptr<float>();
    run(norm, BatchNormPass::statistics);
  }
  if (engine_.device)
    return require_launched(engine_.device->batch_norm_statistics(norm, to, stream_));
  if (of_batch) return join_on_cpu(norm, to);
  for (std::int64_t c = 0; c < norm.channels; ++c) kernels::put_given_statistics(norm, to, c);
}

void Passes::gradients(kernels::BatchNorm norm, const kernels::ChannelGradients& to) const {
  const at::Tensor sums =
      floats({kernels::sum_rows(norm, BatchNormPass::gradient_sums), 2, norm.channels});
  norm.sums = sums.mutable_data_ptr<float>();
  run(norm, BatchNormPass::gradient_sums);
  if (engine_.device)
    return require_launched(engine_.device->batch_norm_gradients(norm, to, stream_));
  join_on_cpu(norm, to);
}

}  // namespace demi::batch_norm
