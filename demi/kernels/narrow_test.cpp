// The formats of codecs/narrow.h and the scales of codecs/block_scales.h by themselves, against
// their definitions.
#include "demi/kernels/codecs/narrow.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <random>
#include <vector>

#include "demi/kernels/codecs/block_scales.h"
#include "demi/kernels/testing/narrow_table.h"
#include "demi/kernels/testing/special_values.h"

namespace demi::kernels {
namespace {

using testing::kInfinity;
using testing::kNaN;
using testing::kNarrowFormats;
using testing::NarrowTable;

std::uint32_t fp32_bits(float x) { return std::bit_cast<std::uint32_t>(x); }

template <class Rounding>
std::uint32_t narrow_code(NarrowFormat format, float x, std::uint32_t random = 0) {
  std::uint32_t code = 0;
  with_format(format, [&](auto f) { code = code_of<decltype(f), Rounding>(fp32_bits(x), random); });
  return code;
}
float narrow_number(NarrowFormat format, std::uint32_t code) {
  float number = 0;
  with_format(format, [&](auto f) { number = number_of<decltype(f)>(code); });
  return number;
}

/// Each number, each midpoint, what is next to them, and what lies beyond the ends.
std::vector<float> awkward_numbers(const NarrowTable& table) {
  std::vector<float> all = {0.0f,     -0.0f,     0x1p-149f,  0x1p-126f,      1e-30f,
                            3.4e38f,  kInfinity, -kInfinity, kNaN,           -kNaN,
                            65504.0f, 1e6f,      -1e30f,     0x1.fffffep127f};
  for (int code = 0; code < table.codes(); ++code) {
    if (!std::isfinite(table[code])) continue;
    const double next = std::isfinite(table[(code + 1) % table.codes()])
                            ? table[(code + 1) % table.codes()]
                            : 2 * table.greatest();
    for (const double x : {table[code], (table[code] + next) / 2}) {
      const auto exact = static_cast<float>(x);
      for (const float toward : {-kInfinity, kInfinity})
        all.push_back(std::nextafter(exact, toward));
      all.push_back(exact);
    }
  }
  return all;
}

TEST(Narrow, ACodeStandsForTheNumberOfItsDefinition) {
  for (const NarrowFormat format : kNarrowFormats) {
    const NarrowTable table(format);
    for (int code = 0; code < table.codes(); ++code) {
      const float number = narrow_number(format, static_cast<std::uint32_t>(code));
      if (std::isnan(table[code]))
        EXPECT_TRUE(std::isnan(number)) << code;
      else
        EXPECT_EQ(number, table[code]) << code;
      EXPECT_EQ(std::signbit(number), code >= table.codes() / 2) << code;
    }
  }
}

TEST(Narrow, RoundsToTheNearestNumberTiesToEven) {
  std::mt19937 random(1);
  for (const NarrowFormat format : kNarrowFormats) {
    const NarrowTable table(format);
    for (const float x : awkward_numbers(table))
      ASSERT_EQ(narrow_code<ToNearest>(format, x), table.nearest(x)) << x;
    for (int i = 0; i < 20000; ++i) {
      const float any = std::bit_cast<float>(static_cast<std::uint32_t>(random()));
      ASSERT_EQ(narrow_code<ToNearest>(format, any), table.nearest(any)) << any;
      const float within = std::ldexp(
          std::bit_cast<float>(static_cast<std::uint32_t>(0x3F800000u | (random() >> 9))),
          static_cast<int>(random() % 40) - 20);
      ASSERT_EQ(narrow_code<ToNearest>(format, within), table.nearest(within)) << within;
    }
  }
}

// Of all 65,536 random halves as many round up as the fraction has 65,536ths.
TEST(Narrow, RoundsUpWithTheProbabilityOfTheFraction) {
  std::mt19937 random(2);
  for (const NarrowFormat format : kNarrowFormats) {
    const NarrowTable table(format);
    std::vector<float> numbers = awkward_numbers(table);
    for (int i = 0; i < 200; ++i)
      numbers.push_back(std::ldexp(
          std::bit_cast<float>(static_cast<std::uint32_t>(0x3F800000u | (random() >> 9))),
          static_cast<int>(random() % 40) - 20));
    for (const float x : numbers) {
      for (const std::uint32_t half : {0u, 1u, 0x7FFFu, 0x8000u, 0xFFFFu})
        ASSERT_EQ(narrow_code<ByFraction>(format, x, half), table.by_chance(x, half)) << x;
      for (int i = 0; i < 20; ++i) {
        const std::uint32_t half = random() & 0xFFFF;
        ASSERT_EQ(narrow_code<ByFraction>(format, x, half), table.by_chance(x, half)) << x;
      }
    }
  }
  int up = 0;
  for (std::uint32_t half = 0; half < 65536; ++half)
    up += narrow_code<ByFraction>(NarrowFormat::e4m3, 1.0f + 0.125f * 0.3f, half) == 0x39;
  EXPECT_EQ(up, static_cast<int>(0.3f * 65536));
}

TEST(Narrow, AFormatsNumbersStayWhatTheyAre) {
  for (const NarrowFormat format : kNarrowFormats) {
    const NarrowTable table(format);
    for (int code = 0; code < table.codes(); ++code) {
      if (!std::isfinite(table[code])) continue;
      const auto x = static_cast<float>(table[code]);
      EXPECT_EQ(narrow_code<ToNearest>(format, x), static_cast<std::uint32_t>(code));
      for (const std::uint32_t half : {0u, 0xFFFFu})
        EXPECT_EQ(narrow_code<ByFraction>(format, x, half), static_cast<std::uint32_t>(code));
    }
  }
}

TEST(BlockScales, AnE8m0CodeIsAPowerOfTwo) {
  for (std::uint32_t code = 0; code < 255; ++code)
    EXPECT_EQ(power_from_e8m0(code), std::ldexp(1.0, static_cast<int>(code) - 127)) << code;
  EXPECT_TRUE(std::isnan(power_from_e8m0(255u)));
}

/// The least power of two that amax / max is not above; or the power of two of the one over that of
/// the other. In FP64, which holds both exactly.
int mx_exponent(bool up, double amax, double max) {
  int exponent = up ? -127 : amax > 0 ? std::ilogb(amax) - std::ilogb(max) : -127;
  if (up)
    while (std::ldexp(max, exponent) < amax) ++exponent;
  return std::max(exponent, -127);
}

TEST(BlockScales, MxScalesArePowersOfTwoByDefinition) {
  std::mt19937 random(3);
  std::vector<float> numbers = {0, 0x1p-149f, 0x1p-126f, 0x1.fffffep-127f, 0x1p-118f,
                                1, 448,       6,         0x1.fffffep127f};
  for (const float max : {448.0f, 57344.0f, 6.0f})
    for (int e = -130; e < 127; ++e) {
      const double scaled = std::ldexp(double{max}, e);
      if (scaled > 3.4e38) continue;
      const auto edge = static_cast<float>(scaled);
      for (const float x : {edge, std::nextafter(edge, 0.0f), std::nextafter(edge, kInfinity)})
        numbers.push_back(x);
    }
  for (int i = 0; i < 20000; ++i)
    numbers.push_back(std::abs(std::bit_cast<float>(static_cast<std::uint32_t>(random()))));
  for (const NarrowFormat format : kNarrowFormats)
    with_format(format, [&](auto f) {
      using F = decltype(f);
      for (const float amax : numbers)
        for (const bool up : {true, false}) {
          const auto scale =
              up ? mx_scale_up<F>(fp32_bits(amax)) : mx_scale_down<F>(fp32_bits(amax));
          if (!std::isfinite(amax)) {
            ASSERT_EQ(scale.code, 255u);
            ASSERT_TRUE(std::isnan(scale.factor));
            continue;
          }
          const int exponent = mx_exponent(up, amax, F::kGreatest);
          ASSERT_EQ(static_cast<int>(scale.code) - 127, exponent) << amax << up;
          const bool is_unscaled = up && exponent == -127;
          ASSERT_EQ(scale.factor, is_unscaled ? 1.0 : std::ldexp(1.0, -exponent)) << amax;
        }
    });
}

TEST(BlockScales, Fp32ScalesAreTheQuotientRoundedOnce) {
  for (const float amax : {1.0f, 3.0f, 448.0f, 1e-13f, 0.0f, 0x1.fffffep127f, 0.1f}) {
    const double kept = std::max(double{amax}, 1e-12);
    EXPECT_EQ(fp32_scale(NarrowFormat::e4m3, Scaling::row, fp32_bits(amax)),
              static_cast<float>(448 / kept));
    EXPECT_EQ(fp32_scale(NarrowFormat::e5m2, Scaling::tensor, fp32_bits(amax)),
              static_cast<float>(57344 / kept));
    EXPECT_EQ(
        fp32_scale(NarrowFormat::e4m3, Scaling::row_power_of_two, fp32_bits(amax)),
        std::exp2(std::floor(std::log2(static_cast<double>(static_cast<float>(448 / kept))))));
  }
  for (const float amax : {kInfinity, kNaN})
    EXPECT_TRUE(std::isnan(fp32_scale(NarrowFormat::e4m3, Scaling::row, fp32_bits(amax))));
}

}  // namespace
}  // namespace demi::kernels
