// Coded weights: the formats, and every path against the reference.
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>
#include <vector>

#include "demi/core/number.h"
#include "demi/kernels/codecs/weights.h"
#include "demi/kernels/recode.h"
#include "demi/kernels/testing/every_path.h"

namespace demi::kernels {
namespace {

using testing::CaseOptions;
using testing::StepCase;

std::uint32_t bits_of_float(float x) { return std::bit_cast<std::uint32_t>(x); }

/// The nearest bf16 number, ties away from zero, in exact arithmetic.
float nearest_bf16(float x) {
  if (x == 0 || !std::isfinite(x)) return x;
  int exponent = 0;
  std::frexp(x, &exponent);
  const double unit = std::ldexp(1.0, std::max(exponent - 8, -133));
  return static_cast<float>(std::round(x / unit) * unit);  // away from zero, as std::round
}

TEST(Split, TheUpperHalfIsTheNearestBf16NumberTiesAwayFromZero) {
  std::vector<std::uint32_t> samples{0x00000000, 0x80000000, 0x00008000, 0x00007FFF, 0x3F808000,
                                     0x3F807FFF, 0xBF818000, 0x7F7F7FFF, 0x00800000, 0x7F800000};
  for (std::uint32_t i = 0; i < 200000; ++i) samples.push_back(i * 21473u);
  for (const std::uint32_t bits : samples) {
    const float x = std::bit_cast<float>(bits);
    const float seen = fp32_from_bf16(static_cast<std::uint16_t>(Split::parameter_of(bits)));
    if (std::isnan(x)) {
      ASSERT_TRUE(std::isnan(seen)) << bits;
    } else if (std::fabs(x) < 0x1.FFp127f || std::isinf(x)) {
      ASSERT_EQ(bits_of_float(seen), bits_of_float(nearest_bf16(x))) << std::hex << bits;
    } else {
      ASSERT_TRUE(std::isinf(seen)) << "beyond the greatest and half a unit";
    }
  }
}

bool comes_back(std::uint32_t bits) {
  const std::uint32_t back = Split::joined(Split::parameter_of(bits), Split::rest_of(bits));
  const bool was_nan = (bits & 0x7FFFFFFFu) > 0x7F800000u;
  return was_nan ? (back & 0x7FFFFFFFu) > 0x7F800000u : back == bits;
}

TEST(Split, NumbersComeBack) {
  for (std::uint32_t i = 0; i < (1u << 20); ++i) ASSERT_TRUE(comes_back(i * 4099u)) << i;
  for (std::uint32_t high = 0; high < 65536; ++high)
    for (const std::uint32_t low : {0u, 1u, 0x7FFFu, 0x8000u, 0x8001u, 0xFFFFu})
      ASSERT_TRUE(comes_back(high << 16 | low)) << std::hex << high << low;
}

// Half a minute: ctest -L long runs it.
TEST(SplitOfAll, DISABLED_NumbersOfFp32ComeBack) {
  std::uint64_t lost = 0;
  for (std::uint64_t bits = 0; bits < (std::uint64_t{1} << 32); ++bits)
    lost += comes_back(static_cast<std::uint32_t>(bits)) ? 0 : 1;
  EXPECT_EQ(lost, 0U);
}

// A program writes the parameter, which is the upper half alone.
TEST(Split, WhatTheProgramWritesCounts) {
  for (std::uint32_t upper = 0; upper < 65536; ++upper)
    for (const std::uint32_t lower : {0u, 1u, 0x7FFFu, 0x8000u, 0xFFFFu}) {
      const auto written = static_cast<std::uint16_t>(upper);
      const std::uint32_t bits = Split::joined(upper, lower);
      const float x = fp32_from_bf16(written);
      if (std::isnan(x))
        ASSERT_TRUE(std::isnan(std::bit_cast<float>(bits)));
      else
        ASSERT_EQ(Split::parameter_of(bits), written) << std::hex << upper << " " << lower;
    }
}

/// How far fp16 numbers are apart near x, which is less than 65,504.
double unit_of_fp16(double x) {
  return std::ldexp(1.0, std::max(x == 0 ? -14 : std::ilogb(x), -14) - 10);
}

/// What is kept of a finite number below 65,520: all bits from 2^-16 on, multiples of 2^-39 below.
double kept_beside_fp16(float x) {
  return std::fabs(x) >= 0x1p-16f ? x : std::nearbyint(static_cast<double>(x) * 0x1p39) * 0x1p-39;
}

/// Whether an FP32 number is split and comes back as promised.
bool fp16_is_right(std::uint32_t bits) {
  const auto x = std::bit_cast<float>(bits);
  const std::uint32_t half = SplitFp16::parameter_of(bits);
  const float parameter = fp32_from_fp16(static_cast<std::uint16_t>(half));
  const auto back = std::bit_cast<float>(SplitFp16::joined(half, SplitFp16::rest_of(bits)));
  if (std::isnan(x)) return std::isnan(parameter) && std::isnan(back);
  if (std::fabs(x) >= 65520) return std::isinf(parameter) && back == parameter && x * back > 0;
  const double unit = unit_of_fp16(x);
  const double nearest = std::copysign(std::floor(std::fabs(x) / unit + 0.5) * unit, x);  // away
  // What was rounded to multiples of 2^-39 may have come to the middle of two.
  const bool is_middle = std::fabs(std::fabs(x - nearest) - unit / 2) <= 0x1p-40;
  const bool is_nearest =
      parameter == nearest || (is_middle && std::fabs(parameter - x) <= unit / 2 + 0x1p-40);
  return is_nearest && back == kept_beside_fp16(x) && std::signbit(back) == std::signbit(x) &&
         std::signbit(parameter) == std::signbit(x);
}

TEST(SplitFp16, TheParameterIsTheNearestFp16NumberTiesAwayAndNumbersComeBack) {
  for (std::uint32_t i = 0; i < (1u << 20); ++i) ASSERT_TRUE(fp16_is_right(i * 4099u)) << i;
  for (std::uint32_t high = 0; high < (1u << 19); ++high)
    for (const std::uint32_t low : {0u, 1u, 0xFFFu, 0x1000u, 0x1001u, 0x1FFFu})
      ASSERT_TRUE(fp16_is_right(high << 13 | low)) << std::hex << high << " " << low;
  const auto kept = [](float x) {
    const std::uint32_t bits = bits_of_float(x);
    return std::bit_cast<float>(
        SplitFp16::joined(SplitFp16::parameter_of(bits), SplitFp16::rest_of(bits)));
  };
  EXPECT_EQ(SplitFp16::parameter_of(bits_of_float(1 + 0x1p-11f)), 0x3C01u) << "a tie, away";
  EXPECT_EQ(SplitFp16::parameter_of(bits_of_float(0x1p-25f)), 0x0001u) << "a tie, away";
  EXPECT_EQ(SplitFp16::parameter_of(bits_of_float(0x1p-14f - 0x1p-38f)), 0x0400u);
  EXPECT_EQ(kept(0x1p-14f - 0x1p-38f), 0x1p-14f - 0x1p-38f) << "FP32's unit halves, fp16's not";
  EXPECT_EQ(kept(0x1.FFFFFEp-16f), 0x1.FFFFFEp-16f) << "the last of 24 bits";
  EXPECT_EQ(kept(0x1.FFFFFEp-17f), 0x1p-16f) << "a tie of two multiples of 2^-39, to even";
  EXPECT_EQ(kept(0x1p-40f), 0);
  EXPECT_EQ(kept(0x1.8p-40f), 0x1p-39f);
  EXPECT_TRUE(std::isinf(kept(65520)));
  // Nothing of what differs from path to path.
  EXPECT_EQ(SplitFp16::parameter_of(0xFFC12345u), 0x7E00u);
  for (const std::uint32_t beyond : {0xFFC12345u, 0x7F800001u, 0x7F800000u, 0x47800001u})
    EXPECT_EQ(SplitFp16::rest_of(beyond), 0u) << std::hex << beyond;
  EXPECT_EQ(kept(0x1.FFDFFEp15f), 0x1.FFDFFEp15f) << "65,519.996";
}

bool comes_back_from_fp16(std::uint32_t bits) {
  const std::uint32_t back =
      SplitFp16::joined(SplitFp16::parameter_of(bits), SplitFp16::rest_of(bits));
  const std::uint32_t magnitude = bits & 0x7FFFFFFFu, sign = bits & 0x80000000u;
  if (magnitude > 0x7F800000u) return (back & 0x7FFFFFFFu) > 0x7F800000u;
  if (magnitude >= bits_of_float(65520)) return back == (sign | 0x7F800000u);
  if (magnitude >= bits_of_float(0x1p-16f)) return back == bits;
  // FP64 has a unit of 2^-39 from 2^13 on: the sum is rounded there, ties to even.
  const double kept = (std::bit_cast<float>(magnitude) + 0x1p13) - 0x1p13;
  return back == (sign | bits_of_float(static_cast<float>(kept)));
}

// Half a minute: ctest -L long runs it.
TEST(SplitOfAll, DISABLED_NumbersOfFp32ComeBackFromFp16) {
  std::uint64_t lost = 0;
  for (std::uint64_t bits = 0; bits < (std::uint64_t{1} << 32); ++bits)
    lost += comes_back_from_fp16(static_cast<std::uint32_t>(bits)) ? 0 : 1;
  EXPECT_EQ(lost, 0U);
}

TEST(SplitFp16, WhatTheProgramWritesCounts) {
  for (std::uint32_t upper = 0; upper < 65536; ++upper)
    for (const std::uint32_t lower : {0u, 1u, 0xFFFu, 0x1000u, 0x3FFFu, 0x7FFFu, 0x8000u, 0xBFFFu,
                                      0xC000u, 0xE000u, 0xEFFFu, 0xF000u, 0xFFFFu}) {
      const auto written = static_cast<std::uint16_t>(upper);
      const std::uint32_t bits = SplitFp16::joined(upper, lower);
      if (std::isnan(fp32_from_fp16(written)))
        ASSERT_TRUE(std::isnan(std::bit_cast<float>(bits)));
      else
        ASSERT_EQ(SplitFp16::parameter_of(bits), written) << std::hex << upper << " " << lower;
    }
}

float split24(float x) {
  const std::uint32_t bits = bits_of_float(x);
  return std::bit_cast<float>(Split24::joined(Split24::parameter_of(bits), Split24::rest_of(bits)));
}

TEST(Split24, KeepsTheNearestNumberOf16BitsOfMantissaTiesToEven) {
  EXPECT_EQ(split24(1 + 0x1p-15f), 1 + 0x1p-15f) << "kept: a sign, 8 bits of exponent, 15 below 1";
  EXPECT_EQ(split24(1 + 0x1p-16f), 1) << "a tie, to even";
  EXPECT_EQ(split24(1 + 3 * 0x1p-16f), 1 + 0x1p-14f) << "a tie, to even";
  EXPECT_EQ(split24(-1 - 0x1p-16f - 0x1p-23f), -1 - 0x1p-15f) << "above a tie";
  EXPECT_EQ(split24(2 - 0x1p-23f), 2) << "over the edge of a binade";
  EXPECT_EQ(split24(1 - 0x1p-16f), 1 - 0x1p-16f) << "below 1 the unit is 2^-16";
  EXPECT_EQ(split24(0), 0);
  EXPECT_TRUE(std::signbit(split24(-0.0f)));
  EXPECT_TRUE(std::isinf(split24(std::numeric_limits<float>::infinity())));
  EXPECT_TRUE(std::isinf(split24(std::numeric_limits<float>::max()))) << "the nearest one is 2^128";
  EXPECT_TRUE(std::isnan(split24(std::bit_cast<float>(0x7F800001u))));
  EXPECT_TRUE(std::isnan(split24(std::bit_cast<float>(0xFFFFFFFFu))));
}

TEST(Split24, IsAtMostHalfAUnitAwayAndItsParameterIsTheNearestToWhatIsKept) {
  for (std::uint32_t i = 0; i < 200000; ++i) {
    const float x = std::bit_cast<float>(i * 21473u), kept = split24(x);
    if (!std::isfinite(x) || !std::isfinite(kept)) continue;
    const double unit = std::ldexp(1.0, std::max(std::ilogb(x == 0 ? 1 : x) - 15, -141));
    ASSERT_LE(std::fabs(static_cast<double>(kept) - x), unit / 2) << x;
    ASSERT_EQ(split24(kept), kept);
    ASSERT_EQ(Split24::parameter_of(bits_of_float(x)), Split::parameter_of(bits_of_float(kept)));
  }
}

constexpr WeightCodec kWeightCodecs[] = {WeightCodec::split, WeightCodec::split24,
                                         WeightCodec::by_chance, WeightCodec::split_fp16};

CaseOptions weight_case(UpdateRule rule, WeightCodec codec = WeightCodec::split) {
  CaseOptions options = testing::coded_case(rule);
  options.weight = codec;
  return options;
}

TEST(CodedWeights, EveryPathAndTheDeviceGiveTheBitsOfTheReference) {
  for (const UpdateRule rule : testing::all_rules()) {
    if (rule == UpdateRule::ema) continue;
    for (const WeightCodec codec : kWeightCodecs)
      for (const bool coded : {false, true}) {
        SCOPED_TRACE(::testing::Message()
                     << static_cast<int>(rule) << " " << static_cast<int>(codec) << " " << coded);
        CaseOptions options = weight_case(rule, codec);
        if (coded)
          options.codecs = {testing::begins_with_squares(rule) ? Codec::root : Codec::softsign,
                            Codec::bf16_by_chance};
        options.offset = coded ? 3 : 0;
        options.awkward = coded;
        testing::expect_same_bits_on_every_path(options, 2);
      }
  }
}

// The halves are those of the FP32 parameter that the same steps give.
TEST(Split, IsTheTrajectoryOfFp32) {
  for (const UpdateRule rule : testing::all_rules()) {
    if (rule == UpdateRule::ema) continue;
    CaseOptions options = weight_case(rule);
    StepCase halves(options);
    options.weight.reset();
    StepCase whole(options);
    for (int s = 0; s < 3; ++s) {
      halves.step(*cpu_kernels());
      whole.step(*cpu_kernels());
    }
    for (std::size_t t = 0; t < options.lengths.size(); ++t) {
      const TensorEntry& split = halves.plan().tensors()[t];
      for (std::int64_t i = 0; i < split.length; ++i)
        ASSERT_EQ(bits_of_float(decoded(split.coded_parameter, i)),
                  bits_of_float(whole.parameter(t)[i]))
            << static_cast<int>(rule) << " " << t << " " << i;
    }
  }
}

/// A step of SGD at rate 2^-10 with gradients of 1 from parameters of 1, with no more than 16 bits.
double mean_after_steps(WeightCodec codec, int steps) {
  CaseOptions options;
  options.rule = UpdateRule::sgd;
  options.group.learning_rate = 0x1p-12;
  options.lengths = {16384};
  options.weight = codec;
  StepCase one(options);
  const TensorEntry& tensor = one.plan().tensors()[0];
  for (std::int64_t i = 0; i < tensor.length; ++i) {
    tensor.coded_parameter.parameter[i] = 0x3F80;
    one.set_gradient(0, i, options.scale);
  }
  for (int s = 0; s < steps; ++s) one.step(*cpu_kernels());
  double sum = 0;
  for (std::int64_t i = 0; i < tensor.length; ++i) sum += decoded(tensor.coded_parameter, i);
  return sum / static_cast<double>(tensor.length);
}

// Below 1 a unit of bf16 is 2^-8: each step moves a sixteenth of it, which rounding to nearest
// loses.
TEST(WeightsByChance, KeepSmallUpdatesInTheMean) {
  const double mean = mean_after_steps(WeightCodec::by_chance, 8);
  EXPECT_NEAR(mean, 1 - 8 * 0x1p-12, 6 * 0x1p-8 / 128) << "of 16384 elements: six deviations";
  EXPECT_LT(mean, 1);
}

}  // namespace
}  // namespace demi::kernels
