#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>
#include <vector>

#include "demi/core/number.h"
#include "demi/kernels/testing/special_values.h"
#include "demi/kernels/testing/step_case.h"

namespace demi::kernels {
namespace {

using testing::kInfinity;
using testing::kNaN;

constexpr int kLengths[] = {0, 1, 3, 7, 8, 9, 15, 16, 17, 31, 100, 1023};

std::vector<float> awkward(int n, std::uint64_t seed) {
  std::vector<float> values(static_cast<std::size_t>(n));
  for (int i = 0; i < n; ++i) values[i] = testing::value_at(seed, i, 3.0f, true);
  if (n > 2) values[2] = kNaN;
  if (n > 5) values[5] = -kInfinity;
  return values;
}

bool same_bits(float a, float b) {
  return std::bit_cast<std::uint32_t>(a) == std::bit_cast<std::uint32_t>(b) ||
         (std::isnan(a) && std::isnan(b));
}

// All halves, the points between them, and one fp32 step to either side: core/number_test.cpp
// checks number.h there against the compiler; here every path must give the bits of number.h.
TEST(Arrays, NarrowingRoundsAsNumberSays) {
  std::vector<float> probes;
  for (std::uint32_t high = 0; high < 65536; ++high) {
    for (const std::uint32_t low : {0x0000u, 0x0001u, 0x7FFFu, 0x8000u, 0x8001u, 0xFFFFu}) {
      probes.push_back(std::bit_cast<float>(high << 16 | low));
    }
    const float half = fp32_from_fp16(static_cast<std::uint16_t>(high));
    for (const std::uint32_t step : {0u, 0xFFFu, 0x1000u, 0x1001u}) {
      probes.push_back(std::bit_cast<float>(std::bit_cast<std::uint32_t>(half) + step));
    }
  }
  const auto n = static_cast<std::int64_t>(probes.size());
  std::vector<std::uint16_t> narrow(probes.size());
  for (const CpuKernels* kernels : testing::simd_paths()) {
    for (const Storage storage : {Storage::fp16, Storage::bf16}) {
      kernels->narrow(narrow.data(), storage, probes.data(), n);
      for (std::size_t i = 0; i < probes.size(); ++i) {
        const std::uint16_t expected =
            storage == Storage::fp16 ? fp16_from_fp32(probes[i]) : bf16_from_fp32(probes[i]);
        ASSERT_EQ(narrow[i], expected)
            << name_of(kernels->path) << " " << std::bit_cast<std::uint32_t>(probes[i]);
      }
    }
  }
}

TEST(Arrays, WideningIsExactForAllBitPatterns) {
  std::vector<std::uint16_t> halves(65536);
  for (std::uint32_t i = 0; i < 65536; ++i) halves[i] = static_cast<std::uint16_t>(i);
  std::vector<float> wide(halves.size());
  for (const CpuKernels* kernels : testing::simd_paths()) {
    for (const Storage storage : {Storage::fp16, Storage::bf16}) {
      kernels->widen(wide.data(), halves.data(), storage, 65536);
      for (std::uint32_t i = 0; i < 65536; ++i) {
        const float expected =
            storage == Storage::fp16 ? fp32_from_fp16(halves[i]) : fp32_from_bf16(halves[i]);
        ASSERT_TRUE(same_bits(wide[i], expected)) << name_of(kernels->path) << " " << i;
      }
    }
  }
}

TEST(Arrays, EveryPathGivesTheBitsOfTheReference) {
  const CpuKernels& reference = *cpu_kernels(Path::reference);
  for (const CpuKernels* kernels : testing::simd_paths()) {
    for (const int n : kLengths) {
      const std::vector<float> input = awkward(n, 7), other = awkward(n, 8);
      std::vector<std::uint16_t> halves(input.size());
      reference.narrow(halves.data(), Storage::bf16, other.data(), n);
      const auto expect_same = [&](auto operation) {
        std::vector<float> expected = input, seen = input;
        operation(reference, expected.data());
        operation(*kernels, seen.data());
        for (int i = 0; i < n; ++i) {
          ASSERT_TRUE(same_bits(expected[i], seen[i]))
              << name_of(kernels->path) << " n " << n << " i " << i;
        }
      };
      for (const Storage storage : {Storage::bf16, Storage::fp16})
        expect_same([&](const CpuKernels& k, float* x) { k.widen(x, halves.data(), storage, n); });
      expect_same(
          [&](const CpuKernels& k, float* x) { k.widen(x, other.data(), Storage::fp32, n); });
      expect_same([&](const CpuKernels& k, float* x) { k.unscale(x, 0x1p-16f, n); });
      expect_same([&](const CpuKernels& k, float* x) { k.lerp(x, other.data(), 0.01f, n); });
      expect_same([&](const CpuKernels& k, float* x) { k.lerp(x, other.data(), 0.75f, n); });
    }
  }
}

TEST(Arrays, UnscaleReportsTheGreatestMagnitudeBefore) {
  for (const Path path : {Path::reference, Path::avx2, Path::avx512}) {
    const CpuKernels* kernels = cpu_kernels(path);
    if (!kernels) continue;
    std::vector<float> values(37, 1.0f);
    values[36] = -8.0f;
    EXPECT_EQ(std::bit_cast<float>(kernels->unscale(values.data(), 0.5f, 37)), 8.0f);
    EXPECT_EQ(values[36], -4.0f);
    values[20] = kNaN;
    EXPECT_GT(kernels->unscale(values.data(), 0.5f, 37), 0x7F800000u);
    EXPECT_EQ(kernels->unscale(values.data(), 0.5f, 0), 0u);
  }
}

}  // namespace
}  // namespace demi::kernels
