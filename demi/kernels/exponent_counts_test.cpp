#include "demi/kernels/exponent_counts.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "demi/kernels/cpu_kernels.h"
#include "demi/kernels/path.h"
#include "demi/kernels/testing/step_case.h"

namespace demi::kernels {
namespace {

// std::frexp and std::fpclassify of each element by itself.
ExponentCounts by_the_standard_library(const std::vector<float>& values) {
  ExponentCounts counts;
  for (const float x : values) {
    if (std::isnan(x)) {
      ++counts.nans;
    } else if (std::isinf(x)) {
      ++counts.infinities;
    } else if (x == 0) {
      ++counts.zeros;
    } else {
      int exponent = 0;
      std::frexp(x, &exponent);  // in [0.5, 1) × 2^exponent
      ++counts.of_exponent[exponent - 1 - kLowestExponent];
    }
  }
  return counts;
}

void expect_same_counts(const ExponentCounts& found, const ExponentCounts& wanted) {
  for (int i = 0; i < kExponents; ++i)
    ASSERT_EQ(found.of_exponent[i], wanted.of_exponent[i]) << "2^" << i + kLowestExponent;
  EXPECT_EQ(found.zeros, wanted.zeros);
  EXPECT_EQ(found.infinities, wanted.infinities);
  EXPECT_EQ(found.nans, wanted.nans);
}

// Bits of a linear congruential generator: every exponent, NaN and infinities among them.
std::vector<float> any_bits(std::size_t n) {
  std::vector<float> values(n);
  std::uint32_t x = 1;
  for (float& value : values) value = std::bit_cast<float>(x = 1664525U * x + 1013904223U);
  return values;
}

// As gradients are: fractions over few binades, zeros between them.
std::vector<float> like_gradients(std::size_t n) {
  std::vector<float> values = any_bits(n);
  for (float& value : values) {
    const auto bits = std::bit_cast<std::uint32_t>(value);
    value = bits % 3 == 0 ? 0.0f
                          : std::ldexp(1.0f + static_cast<float>(bits >> 9) * 0x1p-23f,
                                       -20 - static_cast<int>(bits % 16));
  }
  return values;
}

std::vector<const CpuKernels*> all_paths() {
  std::vector<const CpuKernels*> paths = testing::simd_paths();
  paths.push_back(cpu_kernels(Path::reference));
  return paths;
}

void expect_counts_of(const std::vector<float>& values) {
  const auto n = static_cast<std::int64_t>(values.size());
  const ExponentCounts wanted = by_the_standard_library(values);
  ExponentCounts reference;
  cpu_kernels(Path::reference)->count_exponents(Storage::fp32, values.data(), 0, n, reference);
  for (const CpuKernels* kernels : all_paths()) {
    SCOPED_TRACE(std::string(name_of(kernels->path)) + ", n " + std::to_string(n));
    ExponentCounts found;
    kernels->count_exponents(Storage::fp32, values.data(), 0, n, found);
    expect_same_counts(found, wanted);
    EXPECT_EQ(std::bit_cast<std::uint64_t>(found.sum_of_squares),
              std::bit_cast<std::uint64_t>(reference.sum_of_squares));
  }
}

TEST(ExponentCounts, AreTheStandardLibrarysInEveryLength) {
  for (const std::size_t n :
       {0, 1, 7, 8, 15, 16, 31, 32, 33, 63, 64, 65, 1000, 1023, 1024, 1025, 3000, 70000}) {
    expect_counts_of(any_bits(n));
    expect_counts_of(like_gradients(n));
  }
}

// Few of them under the binades that are compared, down to the subnormal numbers.
TEST(ExponentCounts, FindTheRareOnesFarBelowTheGreatest) {
  std::vector<float> values = like_gradients(5000);
  values[3] = 0x1p100f;
  values[1500] = -0x1p-126f;
  values[1501] = 0x1.8p-127f;
  values[2100] = std::numeric_limits<float>::denorm_min();
  values[4999] = -std::numeric_limits<float>::infinity();
  expect_counts_of(values);
  values[2101] = std::numeric_limits<float>::quiet_NaN();
  values[4998] = -std::numeric_limits<float>::max();
  expect_counts_of(values);
  expect_counts_of(std::vector<float>(1024, std::numeric_limits<float>::signaling_NaN()));
}

TEST(ExponentCounts, HalvesAreCountedAsTheirValues) {
  std::vector<std::uint16_t> halves(65536);
  for (std::uint32_t i = 0; i < 65536; ++i) halves[i] = static_cast<std::uint16_t>(i * 40503u);
  for (const Storage storage : {Storage::fp16, Storage::bf16}) {
    std::vector<float> values(halves.size());
    cpu_kernels(Path::reference)->widen(values.data(), halves.data(), storage, 65536);
    for (const CpuKernels* kernels : all_paths()) {
      SCOPED_TRACE(name_of(kernels->path));
      ExponentCounts found;
      kernels->count_exponents(storage, halves.data(), 0, 65536, found);
      expect_same_counts(found, by_the_standard_library(values));
    }
  }
}

TEST(ExponentCounts, RangesAddUp) {
  const std::vector<float> values = any_bits(5000);
  for (const CpuKernels* kernels : all_paths()) {
    ExponentCounts found;
    for (const std::int64_t begin : {0, 1000, 2000, 3000, 4000})
      kernels->count_exponents(Storage::fp32, values.data(), begin, begin + 1000, found);
    expect_same_counts(found, by_the_standard_library(values));
  }
}

// 0.5^2 + 2^2 + 3^2; infinities and NaN are left out.
TEST(ExponentCounts, SquaresAreOfTheFiniteNumbers) {
  const std::vector<float> values = {0.5f, std::numeric_limits<float>::infinity(),
                                     -2,   std::numeric_limits<float>::quiet_NaN(),
                                     0,    3};
  for (const CpuKernels* kernels : all_paths()) {
    ExponentCounts found;
    kernels->count_exponents(Storage::fp32, values.data(), 0, 6, found);
    EXPECT_EQ(found.sum_of_squares, 13.25);
  }
}

}  // namespace
}  // namespace demi::kernels
