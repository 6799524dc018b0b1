#include "demi/kernels/activation.h"

#include <gtest/gtest.h>

#include <cmath>
#include <numbers>
#include <vector>

#include "demi/core/number.h"
#include "demi/kernels/cpu_kernels.h"
#include "demi/kernels/testing/special_values.h"

namespace demi::kernels {
namespace {

using testing::kInfinity;

constexpr Activation kAll[] = {Activation::gelu, Activation::gelu_tanh, Activation::silu};

double share_in_fp64(Activation which, double x) {
  if (which == Activation::gelu) return 0.5 * std::erfc(-x / std::numbers::sqrt2);
  if (which == Activation::silu) return 1 / (1 + std::exp(-x));
  const double u = std::sqrt(2 / std::numbers::pi) * (x + 0.044715 * x * x * x);
  return 1 / (1 + std::exp(-2 * u));  // (1 + tanh(u)) / 2
}

/// d/dx of x share(x), by the derivative of each definition.
double slope_in_fp64(Activation which, double x) {
  const double s = share_in_fp64(which, x);
  if (which == Activation::gelu)
    return s + x * std::exp(-x * x / 2) / std::sqrt(2 * std::numbers::pi);
  if (which == Activation::silu) return s + x * s * (1 - s);
  const double slope_of_u = std::sqrt(2 / std::numbers::pi) * (1 + 3 * 0.044715 * x * x);
  return s + x * s * (1 - s) * 2 * slope_of_u;
}

std::vector<const CpuKernels*> kernels_here() {
  std::vector<const CpuKernels*> found;
  for (const Path path : {Path::reference, Path::avx2, Path::avx512})
    if (const CpuKernels* kernels = cpu_kernels(path)) found.push_back(kernels);
  return found;
}

std::vector<float> many_values() {
  std::vector<float> x{0.f,  -0.f,  1e-40f, -1e-40f, 1e30f, -1e30f, 3e38f, -3e38f, 12.9f,  -12.9f,
                       13.f, -13.f, 13.1f,  -13.1f,  86.9f, -86.9f, 87.1f, -87.1f, -9.99f, -10.01f};
  for (int i = -30011; i <= 30011; ++i) x.push_back(static_cast<float>(i) * 5e-4f);
  return x;
}

std::vector<float> activations_by(const CpuKernels& kernels, Activation which,
                                  const std::vector<float>& x) {
  std::vector<float> y(x.size());
  kernels.activate(which, y.data(), Storage::fp32, x.data(), static_cast<std::int64_t>(x.size()));
  return y;
}

std::vector<float> slopes_by(const CpuKernels& kernels, Activation which,
                             const std::vector<float>& x) {
  std::vector<float> y(x.size(), 1.f);
  kernels.activation_gradient(which, y.data(), Storage::fp32, y.data(), x.data(),
                              static_cast<std::int64_t>(x.size()));
  return y;
}

// The share of a value far below 0 is e^z, and the relative error of e^z grows with z, which is
// rounded.
TEST(Activation, IsThatOfFp64) {
  const std::vector<float> x = many_values();
  for (const CpuKernels* kernels : kernels_here()) {
    for (const Activation which : kAll) {
      const auto y = activations_by(*kernels, which, x);
      for (std::size_t i = 0; i < x.size(); ++i) {
        const double share = share_in_fp64(which, x[i]), exact = x[i] * share;
        const double tolerance = share > 0 ? 8e-7 - 2e-7 * std::log(share) : 0;
        ASSERT_NEAR(y[i], exact, 2e-36 + tolerance * std::abs(exact))
            << static_cast<int>(which) << ": " << x[i];
      }
    }
  }
}

TEST(Activation, HasTheSlopeOfFp64) {
  const std::vector<float> x = many_values();
  for (const CpuKernels* kernels : kernels_here()) {
    for (const Activation which : kAll) {
      const auto y = slopes_by(*kernels, which, x);
      for (std::size_t i = 0; i < x.size(); ++i)
        ASSERT_NEAR(y[i], slope_in_fp64(which, x[i]), 1e-6)
            << static_cast<int>(which) << ": " << x[i];
    }
  }
}

TEST(Activation, AtTheEnds) {
  for (const CpuKernels* kernels : kernels_here()) {
    for (const Activation which : kAll) {
      const auto y =
          activations_by(*kernels, which, {kInfinity, -kInfinity, std::nanf(""), -3e38f});
      EXPECT_EQ(y[0], kInfinity);
      EXPECT_TRUE(std::isnan(y[1])) << "Inf times 0, as in LibTorch";
      EXPECT_TRUE(std::isnan(y[2]));
      EXPECT_EQ(y[3], 0.f);
      const auto slope = slopes_by(*kernels, which, {std::nanf(""), 3e38f, -3e38f, 0.f});
      EXPECT_TRUE(std::isnan(slope[0]));
      EXPECT_EQ(slope[1], 1.f);
      EXPECT_EQ(slope[2], 0.f);
      EXPECT_NEAR(slope[3], 0.5f, 1e-7);
    }
  }
}

TEST(Activation, HasTheSameBitsOnEachPath) {
  const std::vector<float> x = many_values();
  for (const CpuKernels* kernels : kernels_here()) {
    for (const Activation which : kAll) {
      EXPECT_EQ(activations_by(*kernels, which, x),
                activations_by(*kernels_here().front(), which, x));
      EXPECT_EQ(slopes_by(*kernels, which, x), slopes_by(*kernels_here().front(), which, x));
    }
  }
}

// Lengths around the vectors' widths and the pieces, and nothing written behind the end.
TEST(Activation, RoundsTheFp32ResultTo16Bits) {
  for (const CpuKernels* kernels : kernels_here()) {
    for (const Storage storage : {Storage::fp16, Storage::bf16}) {
      const auto narrow = [&](float x) {
        return storage == Storage::fp16 ? fp16_from_fp32(x) : bf16_from_fp32(x);
      };
      const auto widen = [&](std::uint16_t x) {
        return storage == Storage::fp16 ? fp32_from_fp16(x) : fp32_from_bf16(x);
      };
      for (const std::size_t n : {0u, 1u, 7u, 16u, 33u, 511u, 512u, 513u, 1500u}) {
        std::vector<std::uint16_t> x(n), gradient(n), y(n + 1, 0x1234), to(n + 1, 0x1234);
        std::vector<float> wide(n);
        for (std::size_t i = 0; i < n; ++i) {
          x[i] = narrow(static_cast<float>(i % 97) * 0.11f - 5.f);
          gradient[i] = narrow(static_cast<float>(i % 13) - 6.f);
          wide[i] = widen(x[i]);
        }
        for (const Activation which : kAll) {
          const auto count = static_cast<std::int64_t>(n);
          kernels->activate(which, y.data(), storage, x.data(), count);
          kernels->activation_gradient(which, to.data(), storage, gradient.data(), x.data(), count);
          const auto exact = activations_by(*kernels, which, wide);
          const auto slopes = slopes_by(*kernels, which, wide);
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
}

}  // namespace
}  // namespace demi::kernels
