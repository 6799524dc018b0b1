#include "demi/kernels/batch_norm.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "demi/kernels/cpu_kernels.h"
#include "demi/kernels/testing/batch_norm_case.h"
#include "demi/kernels/testing/kernels_here.h"
#include "demi/kernels/testing/special_values.h"
#include "demi/kernels/testing/stored_array.h"

namespace demi::kernels {
namespace {

using testing::kernels_here;
using testing::kInfinity;
using testing::kNaN;
using testing::kShapes;
using ::testing::Message;
using testing::NormCase;
using testing::NormShape;
using testing::pooled_shapes;
using testing::step_of;

template <class Act>
void each_pixel(const NormShape& shape, Act act) {
  for (std::int64_t n = 0; n < shape.images; ++n)
    for (std::int64_t h = 0; h < shape.height; ++h)
      for (std::int64_t w = 0; w < shape.width; ++w) act(n, h, w);
}

/// v of FP64, before ReLU and pooling.
double v_in_fp64(NormCase& of, std::int64_t n, std::int64_t c, std::int64_t h, std::int64_t w) {
  const auto k = static_cast<std::size_t>(c);
  const std::int64_t i = of.at(n, c, h, w);
  return (double{of.x[i]} - of.mean[k]) * of.scale[k] + of.shift[k] +
         (of.shape.add ? of.add[i] : 0.f);
}

TEST(BatchNorm, SumsGiveTheStatisticsOfFp64) {
  for (const NormShape& shape : kShapes)
    for (const CpuKernels* kernels : kernels_here()) {
      NormCase one(shape);
      one.run(*kernels, BatchNormPass::statistics);
      const BatchNorm norm = one.described();
      for (std::int64_t c = 0; c < shape.channels; ++c) {
        double sum = 0, squares = 0, expected = 0, expected_squares = 0, count = 0;
        for (std::int64_t row = 0; row < sum_rows(norm, BatchNormPass::statistics); ++row) {
          const float* of = one.statistics.data() + row * 3 * shape.channels + c;
          const double n = static_cast<double>(pixels_of_row(norm, row)), near = of[0];
          count += n;
          sum += n * near + of[shape.channels];
          squares += of[2 * shape.channels] + 2 * near * of[shape.channels] + n * near * near;
        }
        each_pixel(shape, [&](auto n, auto h, auto w) {
          const double x = one.x[one.at(n, c, h, w)];
          expected += x;
          expected_squares += x * x;
        });
        EXPECT_EQ(count, static_cast<double>(shape.images * shape.height * shape.width));
        EXPECT_NEAR(sum, expected, 2e-6 * count * 5);
        EXPECT_NEAR(squares, expected_squares, 2e-6 * count * 30);
      }
    }
}

TEST(BatchNorm, ForwardIsThatOfFp64) {
  for (const NormShape& shape : kShapes)
    for (const CpuKernels* kernels : kernels_here()) {
      NormCase one(shape);
      one.run(*kernels, BatchNormPass::forward);
      each_pixel(shape, [&](auto n, auto h, auto w) {
        for (std::int64_t c = 0; c < shape.channels; ++c) {
          const double v = v_in_fp64(one, n, c, h, w), y = shape.relu ? std::max(v, 0.0) : v;
          ASSERT_NEAR(one.y[one.at(n, c, h, w)], y, step_of(shape.storage) * std::abs(y) + 2e-6);
        }
      });
      EXPECT_TRUE(one.y.is_whole());
    }
}

/// Whether the gradient passes, from what forward has written.
bool passes(NormCase& of, std::int64_t i) { return !of.shape.relu || of.y[i] > 0; }

TEST(BatchNorm, BackwardIsThatOfFp64) {
  for (const NormShape& shape : kShapes)
    for (const CpuKernels* kernels : kernels_here()) {
      NormCase one(shape);
      one.run_all(*kernels);
      const BatchNorm norm = one.described();
      for (std::int64_t c = 0; c < shape.channels; ++c) {
        const auto k = static_cast<std::size_t>(c);
        double sum = 0, products = 0, expected = 0, expected_products = 0;
        for (std::int64_t row = 0; row < sum_rows(norm, BatchNormPass::gradient_sums); ++row) {
          sum += one.gradient_sums[static_cast<std::size_t>(row * 2 * shape.channels + c)];
          products +=
              one.gradient_sums[static_cast<std::size_t>((row * 2 + 1) * shape.channels + c)];
        }
        each_pixel(shape, [&](auto n, auto h, auto w) {
          const std::int64_t i = one.at(n, c, h, w);
          const double g = passes(one, i) ? one.dy[i] : 0.f, d = double{one.x[i]} - one.mean[k];
          expected += g;
          expected_products += g * d;
          if (shape.add) {
            ASSERT_EQ(one.g[i], static_cast<float>(g));
          }
          const double dx = (g - one.mean_gradient[k] - d * one.slope[k]) * one.scale[k];
          ASSERT_NEAR(one.dx[i], dx, step_of(shape.storage) * std::abs(dx) + 1e-6);
        });
        const double count = static_cast<double>(shape.images * shape.height * shape.width);
        EXPECT_NEAR(sum, expected, 1e-6 * count);
        EXPECT_NEAR(products, expected_products, 3e-6 * count);
      }
      EXPECT_TRUE(one.dx.is_whole() && one.g.is_whole());
    }
}

/// The place that torch.max_pool2d chooses: the first of the greatest, of NaN the last.
struct Chosen {
  float value = -kInfinity;
  std::int64_t place = -1, h = 0, w = 0;
};
Chosen chosen_of(NormCase& of, NormCase& unpooled, std::int64_t n, std::int64_t c, std::int64_t oh,
                 std::int64_t ow) {
  const PoolWindows& pool = of.shape.pool;
  Chosen best;
  for (std::int64_t r = 0; r < pool.size[0]; ++r)
    for (std::int64_t k = 0; k < pool.size[1]; ++k) {
      const std::int64_t h = oh * pool.stride[0] - pool.padding[0] + r;
      const std::int64_t w = ow * pool.stride[1] - pool.padding[1] + k;
      if (h < 0 || w < 0 || h >= of.shape.height || w >= of.shape.width) continue;
      const float v = unpooled.y[of.at(n, c, h, w)];
      if (best.place < 0 || v > best.value || std::isnan(v)) best = {v, r * pool.size[1] + k, h, w};
    }
  return best;
}

TEST(BatchNorm, PoolingIsThatOfTheUnpooledResult) {
  for (const NormShape& shape : pooled_shapes())
    for (const CpuKernels* kernels : kernels_here()) {
      SCOPED_TRACE(Message() << shape.channels_last << shape.add << shape.relu << ' '
                             << static_cast<int>(shape.storage) << ' ' << shape.pool.size[0] << ' '
                             << shape.pool.stride[0] << ' ' << shape.width);
      NormShape plain = shape;
      plain.pool = {};
      plain.relu = false;
      NormCase one(shape), unpooled(plain);
      const std::int64_t beside = shape.channels_last ? shape.channels : 1;
      for (std::int64_t i = 0; i < shape.input_size(); i += 13) {  // equals and NaN
        const std::int64_t other = std::max<std::int64_t>(0, i - beside);
        for (NormCase* each : {&one, &unpooled}) {
          each->add.set(i, each->add[other]);
          each->x.set(i, i % 3 == 0 ? kNaN : each->x[other]);
        }
      }
      one.run_all(*kernels);
      unpooled.run(*kernels, BatchNormPass::forward);
      const BatchNorm norm = one.described();
      std::vector<double> g(static_cast<std::size_t>(shape.input_size()), 0.0);
      for (std::int64_t n = 0; n < shape.images; ++n)
        for (std::int64_t c = 0; c < shape.channels; ++c)
          for (std::int64_t oh = 0; oh < shape.pool.height; ++oh)
            for (std::int64_t ow = 0; ow < shape.pool.width; ++ow) {
              const Chosen best = chosen_of(one, unpooled, n, c, oh, ow);
              const std::int64_t i = one.at_output(n, c, oh, ow);
              const bool is_cut = shape.relu && best.value <= 0;
              const auto chosen = one.chosen[static_cast<std::size_t>(i)];
              ASSERT_EQ(chosen, is_cut ? kNoPlace : best.place);
              if (std::isnan(best.value))
                ASSERT_TRUE(std::isnan(one.y[i]));
              else
                ASSERT_EQ(one.y[i], is_cut ? 0.f : best.value);
              if (!is_cut) g[static_cast<std::size_t>(one.at(n, c, best.h, best.w))] += one.dy[i];
            }
      for (std::int64_t c = 0; c < shape.channels; ++c) {
        const auto k = static_cast<std::size_t>(c);
        double sum = 0, products = 0, expected = 0, expected_products = 0;
        for (std::int64_t row = 0; row < sum_rows(norm, BatchNormPass::gradient_sums); ++row) {
          sum += one.gradient_sums[static_cast<std::size_t>(row * 2 * shape.channels + c)];
          products +=
              one.gradient_sums[static_cast<std::size_t>((row * 2 + 1) * shape.channels + c)];
        }
        each_pixel(shape, [&](auto n, auto h, auto w) {
          const std::int64_t i = one.at(n, c, h, w);
          double of = g[static_cast<std::size_t>(i)];
          const double d = double{one.x[i]} - one.mean[k];
          if (shape.add) {
            ASSERT_NEAR(one.g[i], of, step_of(shape.storage) * std::abs(of) + 1e-6);
            of = one.g[i];  // the others follow from the rounded one
          }
          expected += of;
          if (of != 0 || shape.add) expected_products += of * d;
          const double dx = (of - one.mean_gradient[k] - d * one.slope[k]) * one.scale[k];
          if (std::isnan(dx))
            ASSERT_TRUE(std::isnan(one.dx[i]));
          else
            ASSERT_NEAR(one.dx[i], dx, step_of(shape.storage) * std::abs(dx) + 1e-6);
        });
        const double count = static_cast<double>(shape.images * shape.height * shape.width);
        EXPECT_NEAR(sum, expected, 2e-6 * count);
        if (std::isnan(expected_products))
          EXPECT_TRUE(std::isnan(products));
        else
          EXPECT_NEAR(products, expected_products, 8e-6 * count);
      }
    }
}

TEST(BatchNorm, HasTheSameBitsOnEachPath) {
  std::vector<NormShape> shapes = pooled_shapes();
  shapes.insert(shapes.end(), std::begin(kShapes), std::end(kShapes));
  for (const NormShape& shape : shapes) {
    NormCase expected(shape);
    expected.run_all(*kernels_here().front());
    for (const CpuKernels* kernels : kernels_here()) {
      NormCase one(shape);
      one.run_all(*kernels);
      EXPECT_EQ(one.statistics, expected.statistics);
      EXPECT_EQ(one.gradient_sums, expected.gradient_sums);
      EXPECT_TRUE(one.y == expected.y && one.g == expected.g && one.dx == expected.dx);
      EXPECT_TRUE(one.y.is_whole() && one.g.is_whole() && one.dx.is_whole());
      EXPECT_EQ(one.chosen, expected.chosen);
    }
  }
}

// The mask of ReLU is made from v, and has to be that of y: of a v that rounds to 0 nothing passes.
TEST(BatchNorm, WhatRoundsToZeroPassesNoGradient) {
  for (const Storage storage : {Storage::fp16, Storage::bf16, Storage::fp32}) {
    const float smallest = storage == Storage::fp16   ? 0x1p-24f
                           : storage == Storage::bf16 ? 0x1p-133f
                                                      : 0x1p-149f;
    for (const CpuKernels* kernels : kernels_here()) {
      NormCase one({true, true, false, 1, 1, 1, 8, {}, storage});
      one.mean = {0};
      one.scale = {storage == Storage::fp32 ? 1.f : 0.25f};
      one.shift = {0};
      const float x[] = {0, -0.f, smallest, 2 * smallest, 3 * smallest, 4 * smallest, kNaN, -1};
      for (int i = 0; i < 8; ++i) {
        one.x.set(i, x[i]);
        one.dy.set(i, 1);
      }
      one.mean_gradient = one.slope = {0};
      one.run_all(*kernels);
      for (const int i : {0, 1, 2, 3, 4, 5, 7})
        EXPECT_EQ(one.dx[i], one.y[i] > 0 ? one.scale[0] : 0.f) << i;
      EXPECT_TRUE(std::isnan(one.y[6]) && std::isnan(one.dx[6]));
    }
  }
}

TEST(BatchNorm, InfinityReachesSumsAsInfinity) {
  for (const bool channels_last : {true, false})
    for (const CpuKernels* kernels : kernels_here())
      for (const std::int64_t at : {0, 5}) {  // the value that is subtracted, and another
        NormCase one({channels_last, true, false, 1, 1, 3, 3, {}});
        one.x.set(at, kInfinity);
        one.run(*kernels, BatchNormPass::statistics);
        EXPECT_TRUE(std::isfinite(one.statistics[0]));
        EXPECT_EQ(one.statistics[1], kInfinity);
        EXPECT_EQ(one.statistics[2], kInfinity);
      }
}

// The first value of a row is subtracted from its others: one far from them costs that row alone
// its digits.
TEST(BatchNorm, AnOutlierInFrontSpoilsNoVariance) {
  for (const bool channels_last : {true, false})
    for (const CpuKernels* kernels : kernels_here()) {
      NormCase one({channels_last, true, false, 64, 1, 32, 32, {}, Storage::fp32});
      one.x.set(0, 1000.f);
      one.run(*kernels, BatchNormPass::statistics);
      const BatchNorm norm = one.described();
      const auto pixels = static_cast<double>(one.shape.input_size());
      double mean = 0, expected_mean = 0, m2 = 0, expected = 0;
      const std::int64_t rows = sum_rows(norm, BatchNormPass::statistics);
      const auto mean_of_row = [&](std::int64_t row) {
        const float* of = one.statistics.data() + row * 3;
        return of[0] + double{of[1]} / static_cast<double>(pixels_of_row(norm, row));
      };
      for (std::int64_t row = 0; row < rows; ++row)
        mean += mean_of_row(row) * static_cast<double>(pixels_of_row(norm, row)) / pixels;
      for (std::int64_t i = 0; i < one.shape.input_size(); ++i) expected_mean += one.x[i] / pixels;
      for (std::int64_t row = 0; row < rows; ++row) {
        const float* of = one.statistics.data() + row * 3;
        const auto n = static_cast<double>(pixels_of_row(norm, row));
        m2 += of[2] - double{of[1]} * of[1] / n + n * std::pow(mean_of_row(row) - mean, 2);
      }
      for (std::int64_t i = 0; i < one.shape.input_size(); ++i)
        expected += std::pow(one.x[i] - expected_mean, 2);
      EXPECT_NEAR(mean, expected_mean, 1e-5);
      EXPECT_NEAR(m2 / expected, 1, 1e-4);
    }
}

}  // namespace
}  // namespace demi::kernels
