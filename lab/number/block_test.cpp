#include "lab/number/block.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "demi/core/error.h"
#include "lab/number/formats_testing.h"

namespace demi::number {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

Block block_of(std::string_view form, const std::vector<float>& numbers,
               std::optional<float> tensor_amax = {}) {
  const BlockForm& of = parse_block_form(form);
  return quantize_block(of, format_of(of.formats.front()), numbers, tensor_amax);
}

// 448 = 1.75 x 2^8; 500 needs a scale of 2, and 0.001 / 2 is a quarter of the smallest number.
TEST(Block, Mxfp8HasThePowerOfTwoThatTheGreatestNeeds) {
  const Block block = block_of("mxfp8", {500, -3, 0.001f, 0, 0.0117f});
  EXPECT_EQ(block.amax, 500);
  EXPECT_EQ(block.scale, 2);
  EXPECT_EQ(block.scale_code, 128);
  EXPECT_FALSE(block.tensor_scale);
  const float values[] = {512, -3, 0, 0, 0.01171875f};
  const Outcome outcomes[] = {Outcome::kRounded, Outcome::kExact, Outcome::kUnderflow,
                              Outcome::kExact, Outcome::kDenormal};
  for (std::size_t i = 0; i < 5; ++i) {
    EXPECT_EQ(block.numbers[i].value, values[i]);
    EXPECT_EQ(block.numbers[i].outcome, outcomes[i]) << i;
  }
  EXPECT_EQ(block.numbers[0].code, 0x78U);  // 256
  EXPECT_EQ(block.numbers[0].error_ulp, 0.375) << "of 250 in units of 16";
  EXPECT_THAT(scale_text(block), ElementsAre("2^1 = 2, E8M0 code 0x80 = 1 + 127"));
}

TEST(Block, TheOtherFormatHasItsRange) {
  const Block block = quantize_block(parse_block_form("mxfp8"), kE5m2, {57344, 60000}, {});
  EXPECT_EQ(block.scale, 2);
  EXPECT_EQ(block.numbers[0].value, 57344);
}

// The greatest of E2M1 is 6: amax 7 needs 2.
TEST(Block, Mxfp4HasEightMagnitudes) {
  const Block block = block_of("mxfp4", {7, -5, 0.4f});
  EXPECT_EQ(block.scale, 2);
  EXPECT_EQ(block.numbers[0].code, 0x6U);  // 3.5, a tie: to 4
  EXPECT_EQ(block.numbers[0].value, 8);
  EXPECT_EQ(block.numbers[1].code, 0xCU);  // 2.5, a tie: to 2
  EXPECT_EQ(block.numbers[1].value, -4);
  EXPECT_EQ(block.numbers[2].value, 0);
  EXPECT_EQ(block.numbers[2].outcome, Outcome::kUnderflow);
}

TEST(Block, Nvfp4HasAScaleOfTheTensorToo) {
  const Block alone = block_of("nvfp4", {6, 3, -0.2f});
  EXPECT_EQ(alone.scale, 448);
  EXPECT_EQ(alone.scale_code, 0x7E);
  EXPECT_FLOAT_EQ(*alone.tensor_scale, 6.0f / 2688);
  EXPECT_FLOAT_EQ(alone.numbers[1].value, 3);
  EXPECT_EQ(alone.numbers[2].outcome, Outcome::kUnderflow);
  const Block part = block_of("nvfp4", {6, 3, -0.2f}, 2688);
  EXPECT_EQ(part.amax, 6);
  EXPECT_EQ(part.tensor_amax, 2688);
  EXPECT_EQ(*part.tensor_scale, 1);
  EXPECT_EQ(part.scale, 1);
  EXPECT_EQ(part.numbers[0].value, 6);
  EXPECT_THAT(scale_text(part), ElementsAre("1, E4M3 code 0x38",
                                            "times 2688 / (448 × 6) = 1 in FP32, of the tensor"));
}

// A block whose scale underflows becomes 0 as a whole.
TEST(Block, AScaleOfZeroLeavesNothing) {
  const Block block = block_of("nvfp4", {1e-6f, 0}, 1e6f);
  EXPECT_EQ(block.scale, 0);
  EXPECT_EQ(block.numbers[0].value, 0);
  EXPECT_EQ(block.numbers[0].outcome, Outcome::kUnderflow);
  EXPECT_FALSE(block.numbers[0].error_ulp);
  EXPECT_EQ(block.numbers[1].outcome, Outcome::kExact);
}

TEST(Block, Fp8MultipliesByTheTensorsScale) {
  const Block block = block_of("fp8", {1, 0.5f, -2}, 4);
  EXPECT_EQ(block.scale, 112);
  EXPECT_FALSE(block.scale_code);
  EXPECT_EQ(block.numbers[0].value, 1);
  EXPECT_EQ(block.numbers[2].code, 0xF6U);  // -224
  EXPECT_EQ(block_of("fp8", std::vector<float>(100, 1)).numbers.size(), 100U) << "any number";
}

TEST(Block, InfAndNanAreSaidOfTheWholeBlock) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  for (const BlockForm& form : block_forms())
    for (const float special : {kInfinity, std::nanf("")}) {
      const Block block = block_of(form.name, {1, special});
      for (const BlockNumber& number : block.numbers) {
        EXPECT_TRUE(std::isnan(number.value));
        EXPECT_EQ(number.outcome, Outcome::kNaN);
        EXPECT_FALSE(number.error_ulp);
      }
      EXPECT_THAT(scale_text(block)[0], HasSubstr("an Inf or NaN"));
    }
}

std::string complaint_of(std::string_view form, const Format& format, std::size_t numbers,
                         std::optional<float> tensor_amax = {}) {
  try {
    quantize_block(parse_block_form(form), format, std::vector<float>(numbers, 2.0f), tensor_amax);
  } catch (const UsageError& error) {
    return error.what();
  }
  return "";
}

TEST(Block, WhatIsNoBlockIsSaid) {
  EXPECT_THAT(complaint_of("mxfp8", kE4m3, 33), HasSubstr("seen: 33; accepted: 1 to 32 numbers"));
  EXPECT_THAT(complaint_of("nvfp4", kE2m1, 17), HasSubstr("1 to 16 numbers"));
  EXPECT_THAT(complaint_of("fp8", kE4m3, 0), HasSubstr("one number or more"));
  EXPECT_THAT(complaint_of("mxfp4", kE4m3, 1), HasSubstr("seen: fp8_e4m3; accepted: fp4_e2m1"));
  EXPECT_THAT(complaint_of("nvfp4", kE2m1, 1, 1.0f), HasSubstr("seen: 1; accepted: 2 or more"));
  EXPECT_THAT(complaint_of("mxpf8", kE4m3, 1), HasSubstr("did you mean mxfp8?"));
}

}  // namespace
}  // namespace demi::number
