#include "demi/core/number.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace demi {
namespace {

// Each 16-bit value, the points half way to its neighbour, and one fp32 step to either side of
// these.
template <class Widen, class Narrow, class Expected>
void expect_rounding_at_every_boundary(Widen widen, Narrow narrow, Expected expected) {
  for (std::uint32_t bits = 0; bits < 65536; ++bits) {
    const float value = widen(static_cast<std::uint16_t>(bits));
    if (std::isnan(value)) continue;
    const float next = widen(static_cast<std::uint16_t>(bits + ((bits & 0x7FFF) != 0x7FFF)));
    const float middle = std::isfinite(value) && std::isfinite(next)
                             ? static_cast<float>((static_cast<double>(value) + next) / 2)
                             : value;
    for (const float point : {value, middle}) {
      for (const float probe :
           {point, std::nextafterf(point, -INFINITY), std::nextafterf(point, INFINITY)}) {
        ASSERT_EQ(narrow(probe), expected(probe)) << bits << " " << probe;
      }
    }
  }
}

// GCC's own _Float16 (its software conversions round as IEEE 754 says) is the other implementation.
// On x86 clang has it from 15 on.
#if !defined(__clang__) || __clang_major__ >= 15
float fp32_by_compiler(std::uint16_t bits) {
  return static_cast<float>(std::bit_cast<_Float16>(bits));
}
std::uint16_t fp16_by_compiler(float value) {
  return std::bit_cast<std::uint16_t>(static_cast<_Float16>(value));
}

TEST(Number, Fp16WidensAsTheCompilerDoesForAllBitPatterns) {
  for (std::uint32_t bits = 0; bits < 65536; ++bits) {
    const auto half = static_cast<std::uint16_t>(bits);
    const float ours = fp32_from_fp16(half), theirs = fp32_by_compiler(half);
    if (std::isnan(theirs)) {
      EXPECT_TRUE(std::isnan(ours)) << bits;
    } else {
      EXPECT_EQ(std::bit_cast<std::uint32_t>(ours), std::bit_cast<std::uint32_t>(theirs)) << bits;
    }
  }
}

TEST(Number, Fp16RoundsAsTheCompilerDoesAtEveryBoundary) {
  expect_rounding_at_every_boundary(fp32_from_fp16, fp16_from_fp32, fp16_by_compiler);
}
#endif

// bf16 by definition: of the two neighbours the nearer one, on a tie the even one; distances are
// exact in double.
std::uint16_t bf16_by_definition(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const auto down = static_cast<std::uint16_t>(bits >> 16);
  if (!std::isfinite(value)) return down;
  const auto up = static_cast<std::uint16_t>(down + 1);
  const double low = fp32_from_bf16(down);
  // Past the largest finite value the next one counts as 2^128 (IEEE 754-2019, 4.3.1), though it is
  // infinity.
  const double high =
      std::isfinite(fp32_from_bf16(up)) ? fp32_from_bf16(up) : std::copysign(0x1p128, low);
  const double below = std::fabs(value - low), above = std::fabs(high - value);
  if (below != above) return below < above ? down : up;
  return (down & 1) ? up : down;
}

TEST(Number, Bf16RoundsToNearestEvenAtEveryBoundary) {
  expect_rounding_at_every_boundary(fp32_from_bf16, bf16_from_fp32, bf16_by_definition);
}

TEST(Number, KeepsNaNAndInfinityAndSigns) {
  const float nan_with_low_payload = std::bit_cast<float>(0x7F800001u);
  EXPECT_TRUE(std::isnan(fp32_from_bf16(bf16_from_fp32(nan_with_low_payload))));
  EXPECT_TRUE(std::isnan(fp32_from_fp16(fp16_from_fp32(nan_with_low_payload))));
  EXPECT_EQ(fp16_from_fp32(-INFINITY), 0xFC00);
  EXPECT_EQ(fp16_from_fp32(65520.0f), 0x7C00) << "the tie above 65504 goes to infinity";
  EXPECT_EQ(fp16_from_fp32(65519.0f), 0x7BFF);
  EXPECT_EQ(fp16_from_fp32(-0.0f), 0x8000);
  EXPECT_EQ(bf16_from_fp32(-0.0f), 0x8000);
  EXPECT_EQ(fp16_from_fp32(0x1p-24f), 0x0001) << "the smallest subnormal";
  EXPECT_EQ(fp16_from_fp32(0x1p-25f), 0x0000) << "a tie, to even";
  EXPECT_EQ(bf16_from_fp32(0x1p-133f), 0x0001) << "subnormals are not flushed";
}

}  // namespace
}  // namespace demi
