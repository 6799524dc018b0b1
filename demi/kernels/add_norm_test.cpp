#include "demi/kernels/add_norm.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <vector>

#include "demi/kernels/cpu_kernels.h"
#include "demi/kernels/testing/kernels_here.h"
#include "demi/kernels/testing/special_values.h"
#include "demi/kernels/testing/stored_array.h"

namespace demi::kernels {
namespace {

using testing::kernels_here;
using testing::kInfinity;
using testing::kNaN;
using testing::step_of;
using testing::StoredArray;

struct RowsShape {
  bool centered, add, weight, bias, sum_gradient;
  std::int64_t rows, width;
  Storage storage = Storage::fp32, added = Storage::bf16, normed = Storage::bf16;
};

/// Arrays of a case, and the passes over them as a program makes them.
struct RowsCase {
  RowsShape shape;
  StoredArray x, add, sum, y, ds, dy, dx, dadd;
  std::vector<float> weight, bias, mean, inverse, sums;

  explicit RowsCase(const RowsShape& of, std::uint32_t seed = 1)
      : shape(of),
        x(of.storage, of.rows * of.width),
        add(of.added, of.rows * of.width),
        sum(of.storage, of.rows * of.width),
        y(of.normed, of.rows * of.width),
        ds(of.storage, of.rows * of.width),
        dy(of.normed, of.rows * of.width),
        dx(of.storage, of.rows * of.width),
        dadd(of.added, of.rows * of.width),
        mean(static_cast<std::size_t>(of.rows), -7.f),
        inverse(static_cast<std::size_t>(of.rows), -7.f) {
    std::mt19937 random(seed);
    std::normal_distribution<float> normal;
    for (std::int64_t i = 0; i < of.rows * of.width; ++i) {
      x.set(i, 3.f + 2.f * normal(random));
      add.set(i, normal(random));
      ds.set(i, normal(random));
      dy.set(i, normal(random));
    }
    for (std::int64_t c = 0; c < of.width; ++c) {
      weight.push_back(1.f + 0.3f * normal(random));
      bias.push_back(0.3f * normal(random));
    }
  }

  AddNorm described() {
    return {.storage = shape.storage,
            .added = shape.added,
            .normed = shape.normed,
            .centered = shape.centered,
            .rows = shape.rows,
            .width = shape.width,
            .eps = 1e-5f,
            .input = x.data(),
            .add = shape.add ? add.data() : nullptr,
            .weight = shape.weight ? weight.data() : nullptr,
            .bias = shape.bias ? bias.data() : nullptr,
            .sum = sum.data(),
            .output = y.data(),
            .mean = mean.data(),
            .inverse = inverse.data(),
            .sum_gradient = shape.sum_gradient ? ds.data() : nullptr,
            .output_gradient = dy.data(),
            .input_gradient = dx.data(),
            .add_gradient = shape.add ? dadd.data() : nullptr,
            .sums = nullptr};
  }

  void run(const CpuKernels& kernels) {
    AddNorm norm = described();
    sums.assign(static_cast<std::size_t>(pieces_of(norm) * 2 * shape.width), -1.f);
    norm.sums = sums.data();
    // One after the other from the end, as another number of threads would.
    for (const auto pass : {AddNormPass::forward, AddNormPass::backward})
      for (std::int64_t i = pieces_of(norm); i-- > 0;) kernels.add_norm(norm, pass, i, i + 1);
  }

  bool is_whole() const {
    return sum.is_whole() && y.is_whole() && dx.is_whole() && dadd.is_whole();
  }
};

const RowsShape kRows[] = {
    {true, true, true, true, true, 5, 96},
    {true, true, true, true, true, 131, 40},
    {true, true, true, false, false, 7, 17, Storage::fp32, Storage::fp16, Storage::fp16},
    {true, true, false, false, true, 3, 1, Storage::fp32, Storage::fp32, Storage::fp32},
    {true, true, true, true, true, 4, 33, Storage::bf16, Storage::bf16, Storage::bf16},
    {true, true, true, true, false, 4, 33, Storage::fp16, Storage::fp16, Storage::fp16},
    {true, true, true, true, true, 6, 31, Storage::fp32, Storage::bf16, Storage::fp32},
    {true, false, true, true, true, 66, 768},
    {true, false, true, true, false, 3, 5, Storage::fp32, Storage::fp32, Storage::fp32},
    {false, true, true, false, true, 5, 96},
    {false, true, true, false, true, 600, 64, Storage::fp32, Storage::fp16, Storage::fp16},
    {false, true, false, false, false, 2, 2, Storage::fp32, Storage::fp16, Storage::fp32},
    {false, false, true, false, true, 9, 127, Storage::bf16, Storage::bf16, Storage::bf16},
    {false, false, true, false, true, 9, 65},
};

void expect_close(double seen, double exact, Storage storage, double slack) {
  ASSERT_NEAR(seen, exact, step_of(storage) * std::abs(exact) + slack);
}

/// A row in FP64, of the sum that the kernel has written, whose rounding is expected on its own.
struct ExactRow {
  std::vector<double> h, g;
  double inverse, mean_of_g, mean_of_gh;
};

double summed(RowsCase& of, std::int64_t i) { return of.shape.add ? of.sum[i] : of.x[i]; }

ExactRow exact_row(RowsCase& of, std::int64_t row) {
  const std::int64_t n = of.shape.width, begin = row * n;
  const auto count = static_cast<double>(n);
  double mean = 0, squares = 0;
  for (std::int64_t c = 0; c < n && of.shape.centered; ++c) mean += summed(of, begin + c) / count;
  for (std::int64_t c = 0; c < n; ++c) squares += std::pow(summed(of, begin + c) - mean, 2);
  ExactRow exact{
      .inverse = 1 / std::sqrt(squares / count + double{1e-5f}), .mean_of_g = 0, .mean_of_gh = 0};
  for (std::int64_t c = 0; c < n; ++c) {
    const double factor = of.shape.weight ? of.weight[static_cast<std::size_t>(c)] : 1.f;
    exact.h.push_back((summed(of, begin + c) - mean) * exact.inverse);
    exact.g.push_back(double{of.dy[begin + c]} * factor);
    if (of.shape.centered) exact.mean_of_g += exact.g.back() / count;
    exact.mean_of_gh += exact.g.back() * exact.h.back() / count;
  }
  return exact;
}

TEST(AddNorm, IsThatOfFp64) {
  for (const RowsShape& shape : kRows)
    for (const CpuKernels* kernels : kernels_here()) {
      RowsCase one(shape);
      one.run(*kernels);
      std::vector<double> products(static_cast<std::size_t>(shape.width)), gradients = products;
      for (std::int64_t row = 0; row < shape.rows; ++row) {
        const ExactRow exact = exact_row(one, row);
        // A row of one element has no spread: its inverse magnifies roundings.
        const double slack = shape.width == 1 ? 1e-2 : 1e-5;
        for (std::int64_t c = 0; c < shape.width; ++c) {
          const std::int64_t i = row * shape.width + c;
          const auto k = static_cast<std::size_t>(c);
          if (shape.add) expect_close(one.sum[i], double{one.x[i]} + one.add[i], shape.storage, 0);
          const double y =
              exact.h[k] * (shape.weight ? one.weight[k] : 1.f) + (shape.bias ? one.bias[k] : 0.f);
          expect_close(one.y[i], y, shape.normed, slack);
          const double dx =
              exact.inverse * (exact.g[k] - exact.mean_of_g - exact.h[k] * exact.mean_of_gh) +
              (shape.sum_gradient ? one.ds[i] : 0.f);
          expect_close(one.dx[i], dx, shape.storage, slack);
          if (shape.add) expect_close(one.dadd[i], dx, shape.added, slack);
          products[k] += one.dy[i] * exact.h[k];
          gradients[k] += one.dy[i];
        }
      }
      const std::size_t width = products.size();
      for (std::size_t c = 0; c < width; ++c) {
        double of_products = 0, of_gradients = 0;
        for (std::size_t block = 0; block < one.sums.size(); block += 2 * width) {
          of_products += one.sums[block + c];
          of_gradients += one.sums[block + width + c];
        }
        EXPECT_NEAR(of_products, products[c], 1e-5 * static_cast<double>(shape.rows));
        EXPECT_NEAR(of_gradients, gradients[c], 1e-6 * static_cast<double>(shape.rows));
      }
      EXPECT_TRUE(one.is_whole());
    }
}

TEST(AddNorm, HasTheSameBitsOnEachPath) {
  for (const RowsShape& shape : kRows) {
    RowsCase expected(shape);
    expected.run(*kernels_here().front());
    for (const CpuKernels* kernels : kernels_here()) {
      RowsCase one(shape);
      one.run(*kernels);
      EXPECT_TRUE(one.sum == expected.sum && one.y == expected.y && one.dx == expected.dx &&
                  one.dadd == expected.dadd);
      EXPECT_EQ(one.mean, expected.mean);
      EXPECT_EQ(one.inverse, expected.inverse);
      EXPECT_EQ(one.sums, expected.sums);
    }
  }
}

// The gradient of `add` is rounded from the one in FP32 once.
TEST(AddNorm, BothGradientsAreOfOneNumber) {
  for (const CpuKernels* kernels : kernels_here()) {
    RowsCase one({true, true, true, true, true, 8, 64});
    one.run(*kernels);
    StoredArray rounded(Storage::bf16, 8 * 64);
    for (std::int64_t i = 0; i < 8 * 64; ++i) rounded.set(i, one.dx[i]);
    EXPECT_TRUE(one.dadd == rounded);
  }
}

TEST(AddNorm, InfinityAndNaNReachTheirRowAlone) {
  for (const bool centered : {true, false})
    for (const float odd : {kInfinity, -kInfinity, kNaN})
      for (const CpuKernels* kernels : kernels_here()) {
        RowsCase one({centered, true, true, false, true, 3, 48});
        one.x.set(48 + 5, odd);
        one.run(*kernels);
        EXPECT_TRUE(std::isnan(one.y[48 + 5]) && std::isnan(one.dx[48 + 5]));
        for (std::int64_t c = 0; c < 48; ++c) {
          EXPECT_EQ(std::isnan(one.y[48 + c]), centered || std::isnan(odd) || c == 5);
          EXPECT_TRUE(std::isfinite(one.y[c]) && std::isfinite(one.dx[c]));
          EXPECT_TRUE(std::isfinite(one.y[96 + c]) && std::isfinite(one.dx[96 + c]));
        }
      }
}

// A row far from 0 with little spread: the sum of its squares would have no digit left of it.
TEST(AddNorm, AFarMeanSpoilsNoVariance) {
  for (const CpuKernels* kernels : kernels_here()) {
    RowsCase one(
        {true, false, false, false, false, 1, 256, Storage::fp32, Storage::fp32, Storage::fp32});
    for (std::int64_t c = 0; c < 256; ++c)
      one.x.set(c, 4096.f + static_cast<float>(c % 16) * 0x1p-6f);
    one.run(*kernels);
    for (std::int64_t c = 0; c < 256; ++c) EXPECT_NEAR(one.y[c], exact_row(one, 0).h[c], 1e-3);
  }
}

}  // namespace
}  // namespace demi::kernels
