#include <gtest/gtest.h>

#include <cmath>
#include <numbers>
#include <vector>

#include "demi/core/number.h"
#include "demi/kernels/cpu_kernels.h"
#include "demi/kernels/testing/kernels_here.h"
#include "demi/kernels/testing/special_values.h"

namespace demi::kernels {
namespace {

using testing::kernels_here;
using testing::kInfinity;

/// (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3))) / 2.
double share_in_fp64(double x) {
  const double u = std::sqrt(2 / std::numbers::pi) * (x + 0.044715 * x * x * x);
  return 1 / (1 + std::exp(-2 * u));
}

/// d/dx of x share(x).
double slope_in_fp64(double x) {
  const double s = share_in_fp64(x);
  const double slope_of_u = std::sqrt(2 / std::numbers::pi) * (1 + 3 * 0.044715 * x * x);
  return s + x * s * (1 - s) * 2 * slope_of_u;
}

std::vector<float> many_values() {
  std::vector<float> x{0.f,   -0.f,   1e-40f, -1e-40f, 1e30f,  -1e30f,
                       3e38f, -3e38f, 87.1f,  -87.1f,  -9.99f, -10.01f};
  for (int i = -30011; i <= 30011; ++i) x.push_back(static_cast<float>(i) * 5e-4f);
  return x;
}

std::vector<float> results_by(const CpuKernels& kernels, const std::vector<float>& x) {
  std::vector<float> y(x.size());
  kernels.gelu(y.data(), Storage::fp32, x.data(), static_cast<std::int64_t>(x.size()));
  return y;
}

std::vector<float> slopes_by(const CpuKernels& kernels, const std::vector<float>& x) {
  std::vector<float> y(x.size(), 1.f);
  kernels.gelu_gradient(y.data(), Storage::fp32, y.data(), x.data(),
                        static_cast<std::int64_t>(x.size()));
  return y;
}

// The share of a value far below 0 is e^z, and the relative error of e^z grows with z, which is
// rounded.
TEST(Gelu, IsThatOfFp64) {
  const std::vector<float> x = many_values();
  for (const CpuKernels* kernels : kernels_here()) {
    const auto y = results_by(*kernels, x);
    for (std::size_t i = 0; i < x.size(); ++i) {
      const double share = share_in_fp64(x[i]), exact = x[i] * share;
      const double tolerance = share > 0 ? 8e-7 - 2e-7 * std::log(share) : 0;
      ASSERT_NEAR(y[i], exact, 2e-36 + tolerance * std::abs(exact)) << x[i];
    }
  }
}

TEST(Gelu, HasTheSlopeOfFp64) {
  const std::vector<float> x = many_values();
  for (const CpuKernels* kernels : kernels_here()) {
    const auto y = slopes_by(*kernels, x);
    for (std::size_t i = 0; i < x.size(); ++i) {
      if (std::abs(x[i]) > 1e19) continue;  // FP64's x^2 (1 - s) is Inf times 0 there: at the ends
      ASSERT_NEAR(y[i], slope_in_fp64(x[i]), 1e-6) << x[i];
    }
  }
}

TEST(Gelu, AtTheEnds) {
  for (const CpuKernels* kernels : kernels_here()) {
    const auto y = results_by(*kernels, {kInfinity, -kInfinity, std::nanf(""), -3e38f});
    EXPECT_EQ(y[0], kInfinity);
    EXPECT_TRUE(std::isnan(y[1])) << "Inf times 0, as in LibTorch";
    EXPECT_TRUE(std::isnan(y[2]));
    EXPECT_EQ(y[3], 0.f);
    const auto slope = slopes_by(*kernels, {std::nanf(""), 3e38f, -3e38f, 0.f, 1e20f, -1e20f});
    EXPECT_TRUE(std::isnan(slope[0]));
    EXPECT_EQ(slope[1], 1.f);
    EXPECT_EQ(slope[2], 0.f);
    EXPECT_NEAR(slope[3], 0.5f, 1e-7);
    EXPECT_EQ(slope[4], 1.f);
    EXPECT_EQ(slope[5], 0.f);
  }
}

TEST(Gelu, HasTheSameBitsOnEachPath) {
  const std::vector<float> x = many_values();
  for (const CpuKernels* kernels : kernels_here()) {
    EXPECT_EQ(results_by(*kernels, x), results_by(*kernels_here().front(), x));
    EXPECT_EQ(slopes_by(*kernels, x), slopes_by(*kernels_here().front(), x));
  }
}

// Lengths around the vectors' widths, and nothing written behind the end.
TEST(Gelu, RoundsTheFp32ResultTo16Bits) {
  for (const CpuKernels* kernels : kernels_here()) {
    for (const Storage storage : {Storage::fp16, Storage::bf16}) {
      const auto narrow = [&](float x) {
        return storage == Storage::fp16 ? fp16_from_fp32(x) : bf16_from_fp32(x);
      };
      const auto widen = [&](std::uint16_t x) {
        return storage == Storage::fp16 ? fp32_from_fp16(x) : fp32_from_bf16(x);
      };
      for (const std::size_t n : {0u, 1u, 7u, 8u, 15u, 16u, 17u, 33u, 1500u}) {
        std::vector<std::uint16_t> x(n), gradient(n), y(n + 1, 0x1234), to(n + 1, 0x1234);
        std::vector<float> wide(n);
        for (std::size_t i = 0; i < n; ++i) {
          x[i] = narrow(static_cast<float>(i % 97) * 0.11f - 5.f);
          gradient[i] = narrow(static_cast<float>(i % 13) - 6.f);
          wide[i] = widen(x[i]);
        }
        const auto count = static_cast<std::int64_t>(n);
        kernels->gelu(y.data(), storage, x.data(), count);
        kernels->gelu_gradient(to.data(), storage, gradient.data(), x.data(), count);
        const auto exact = results_by(*kernels, wide), slopes = slopes_by(*kernels, wide);
        for (std::size_t i = 0; i < n; ++i) {
          ASSERT_EQ(y[i], narrow(exact[i])) << i;
          ASSERT_EQ(to[i], narrow(widen(gradient[i]) * slopes[i])) << i;
        }
        EXPECT_EQ(y[n], 0x1234);
        EXPECT_EQ(to[n], 0x1234);
      }
    }
  }
}

}  // namespace
}  // namespace demi::kernels
