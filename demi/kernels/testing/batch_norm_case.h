#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <random>
#include <vector>

#include "demi/kernels/batch_norm.h"
#include "demi/kernels/cpu_kernels.h"
#include "demi/kernels/testing/stored_array.h"

namespace demi::kernels::testing {

struct NormShape {
  bool channels_last, relu, add;
  std::int64_t images, channels, height, width;
  PoolWindows pool;
  Storage storage = Storage::bf16;

  std::int64_t input_size() const { return images * channels * height * width; }
  std::int64_t output_size() const {
    return pool.any() ? images * channels * pool.height * pool.width : input_size();
  }
};

inline PoolWindows pool_of(const NormShape& shape, std::int64_t size, std::int64_t stride,
                           std::int64_t padding) {
  const auto length = [&](std::int64_t n) { return (n + 2 * padding - size) / stride + 1; };
  return {{size, size},
          {stride, stride},
          {padding, padding},
          length(shape.height),
          length(shape.width)};
}

/// Arrays of a case, and the passes over them as a program makes them.
struct NormCase {
  NormShape shape;
  StoredArray x, add, y, dy, g, dx;
  std::vector<std::uint8_t> chosen;
  std::vector<float> mean, scale, shift, mean_gradient, slope, statistics, gradient_sums;

  explicit NormCase(const NormShape& of, std::uint32_t seed = 1)
      : shape(of),
        x(of.storage, of.input_size()),
        add(of.storage, of.input_size()),
        y(of.storage, of.output_size()),
        dy(of.storage, of.output_size()),
        g(of.storage, of.input_size()),
        dx(of.storage, of.input_size()),
        chosen(static_cast<std::size_t>(of.output_size()), 77) {
    std::mt19937 random(seed);
    std::normal_distribution<float> normal;
    for (std::int64_t i = 0; i < of.input_size(); ++i) {
      x.set(i, 3.f + 2.f * normal(random));
      add.set(i, normal(random));
    }
    const auto channels = static_cast<std::size_t>(of.channels);
    for (std::size_t c = 0; c < channels; ++c) {
      mean.push_back(3.f + 0.1f * normal(random));
      scale.push_back(0.5f + 0.1f * normal(random));
      shift.push_back(0.3f * normal(random));
      mean_gradient.push_back(0.01f * normal(random));
      slope.push_back(0.02f * normal(random));
    }
    for (std::int64_t i = 0; i < of.output_size(); ++i) dy.set(i, normal(random));
  }

  BatchNorm described() {
    return {.storage = shape.storage,
            .channels_last = shape.channels_last,
            .relu = shape.relu,
            .images = shape.images,
            .channels = shape.channels,
            .height = shape.height,
            .width = shape.width,
            .pool = shape.pool,
            .input = x.data(),
            .add = shape.add ? add.data() : nullptr,
            .mean = mean.data(),
            .scale = scale.data(),
            .shift = shift.data(),
            .output = y.data(),
            .chosen = shape.pool.any() ? chosen.data() : nullptr,
            .output_gradient = dy.data(),
            .add_gradient = shape.add ? g.data() : nullptr,
            .mean_gradient = mean_gradient.data(),
            .slope = slope.data(),
            .input_gradient = dx.data(),
            .sums = nullptr};
  }

  /// With new sums, if the pass has them.
  BatchNorm described(BatchNormPass pass) {
    BatchNorm norm = described();
    if (pass == BatchNormPass::statistics || pass == BatchNormPass::gradient_sums) {
      const bool first = pass == BatchNormPass::statistics;
      auto& sums = first ? statistics : gradient_sums;
      sums.assign(static_cast<std::size_t>(sum_rows(norm, pass) * (first ? 3 : 2) * shape.channels),
                  -1.f);
      norm.sums = sums.data();
    }
    return norm;
  }
  void run(const CpuKernels& kernels, BatchNormPass pass) {
    const BatchNorm norm = described(pass);
    // One after the other from the end, as another number of threads would.
    for (std::int64_t i = pieces_of(norm, pass); i-- > 0;) kernels.batch_norm(norm, pass, i, i + 1);
  }
  void run_all(const CpuKernels& kernels) {
    for (const auto pass : kPasses) run(kernels, pass);
  }
  static constexpr BatchNormPass kPasses[] = {BatchNormPass::statistics, BatchNormPass::forward,
                                              BatchNormPass::gradient_sums,
                                              BatchNormPass::backward};

  /// Whether all that the passes write is the same.
  bool wrote_as(const NormCase& other) const {
    return statistics == other.statistics && gradient_sums == other.gradient_sums && y == other.y &&
           g == other.g && dx == other.dx && chosen == other.chosen;
  }

  std::int64_t at(std::int64_t n, std::int64_t c, std::int64_t h, std::int64_t w) const {
    return index(n, c, h, w, shape.height, shape.width);
  }
  std::int64_t at_output(std::int64_t n, std::int64_t c, std::int64_t h, std::int64_t w) const {
    return index(n, c, h, w, shape.pool.height, shape.pool.width);
  }
  std::int64_t index(std::int64_t n, std::int64_t c, std::int64_t h, std::int64_t w,
                     std::int64_t height, std::int64_t width) const {
    return shape.channels_last ? ((n * height + h) * width + w) * shape.channels + c
                               : ((n * shape.channels + c) * height + h) * width + w;
  }
};

/// The numbers of channels before and behind the sums of a pass.
struct ChannelCase {
  std::vector<float> weight, bias, running_mean, running_var, channels, corrections, of_weight,
      of_bias;

  explicit ChannelCase(std::int64_t n) {
    std::mt19937 random(3);
    std::uniform_real_distribution<float> number(0.5f, 1.5f);
    const auto count = static_cast<std::size_t>(n);
    for (auto* one : {&weight, &bias, &running_mean, &running_var}) {
      one->resize(count);
      for (float& x : *one) x = number(random);
    }
    channels.resize(4 * count);
    corrections.resize(2 * count);
    of_weight.resize(count);
    of_bias.resize(count);
  }
  ChannelStatistics statistics() {
    return {.eps = 1e-5,
            .momentum = 0.1,
            .weight = weight.data(),
            .bias = bias.data(),
            .running_mean = running_mean.data(),
            .running_var = running_var.data(),
            .channels = channels.data()};
  }
  ChannelGradients gradients() {
    return {.channels = channels.data(),
            .corrections = corrections.data(),
            .weight = of_weight.data(),
            .bias = of_bias.data()};
  }
  bool operator==(const ChannelCase&) const = default;
};

inline const NormShape kShapes[] = {
    {true, true, false, 3, 32, 9, 7, {}},
    {true, true, false, 3, 32, 9, 7, {}, Storage::fp16},
    {true, true, false, 3, 17, 15, 15, {}, Storage::fp32},
    {true, false, false, 2, 5, 3, 4, {}},
    {true, true, true, 4, 72, 13, 11, {}},
    {true, true, true, 3, 600, 5, 9, {}},
    {true, true, true, 1, 1, 1, 3, {}, Storage::fp32},
    {true, false, true, 5, 33, 16, 17, {}, Storage::fp16},
    {false, true, false, 3, 8, 9, 7, {}},
    {false, true, true, 2, 3, 31, 33, {}, Storage::fp32},
    {false, true, true, 2, 3, 4, 4, {}, Storage::fp16},
    {false, false, false, 1, 4, 1, 2, {}},
};

inline std::vector<NormShape> pooled_shapes() {
  std::vector<NormShape> all;
  const auto put = [&](NormShape shape, std::int64_t size, std::int64_t stride,
                       std::int64_t padding) {
    shape.pool = pool_of(shape, size, stride, padding);
    all.push_back(shape);
  };
  for (const bool channels_last : {true, false})
    for (const bool add : {false, true})
      for (const Storage storage : {Storage::bf16, Storage::fp16, Storage::fp32})
        for (const bool relu : {true, false})
          for (const auto& [size, stride, padding] :
               {std::array{2, 2, 0}, std::array{3, 2, 1}, std::array{3, 1, 1}, std::array{2, 3, 0},
                std::array{1, 2, 0}})
            put({channels_last, relu, add, 2, 19, 9, 7, {}, storage}, size, stride, padding);
  // Lines longer than are computed at a time, with windows across the seam.
  for (const bool add : {false, true}) {
    put({false, true, add, 1, 2, 5, 2051, {}}, 3, 1, 1);
    put({false, false, add, 1, 2, 9, 1100, {}, Storage::fp32}, 8, 8, 4);
    put({false, true, add, 2, 1, 40, 38, {}, Storage::fp16}, 2, 2, 0);
  }
  return all;
}

/// All shapes that a device's kernels take.
inline std::vector<NormShape> channels_last_shapes() {
  std::vector<NormShape> all = pooled_shapes();
  all.insert(all.end(), std::begin(kShapes), std::end(kShapes));
  std::erase_if(all, [](const NormShape& shape) { return !shape.channels_last; });
  return all;
}

}  // namespace demi::kernels::testing
