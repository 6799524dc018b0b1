#include "lab/doctor/bf16_rates.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace demi::doctor {
namespace {

using ::testing::HasSubstr;

const Bf16Choice kBf16{Bf16Products::bf16, "of a table"}, kFp32{Bf16Products::fp32, "of a table"};

// The rates of an Intel processor of model 207 without AMX: 0.151 and 0.229 TFLOP/s.
TEST(Bf16Rates, TheOtherWayIsAdvisedWhereItIsFasterByMoreThanAFifth) {
  const auto wrong = of_bf16_rates({kBf16, 0.151, 0.229});
  ASSERT_TRUE(wrong);
  EXPECT_NEAR(wrong->gain, 0.229 / 0.151, 1e-12);
  EXPECT_THAT(wrong->what, HasSubstr("1.52 times as fast through FP32 as in bf16"));
  EXPECT_THAT(wrong->how, HasSubstr("DEMI_BF16_PRODUCTS=fp32"));
  EXPECT_FALSE(of_bf16_rates({kFp32, 0.151, 0.229})) << "the table is right";
  const auto fast = of_bf16_rates({kFp32, 0.5, 0.2});
  ASSERT_TRUE(fast);
  EXPECT_THAT(fast->how, HasSubstr("DEMI_BF16_PRODUCTS=bf16"));
  EXPECT_FALSE(of_bf16_rates({kBf16, 1.0, 1.19}));
  EXPECT_FALSE(of_bf16_rates({kFp32, 1.19, 1.0}));
  EXPECT_TRUE(of_bf16_rates({kBf16, 1.0, 1.21}));
}

TEST(Bf16Rates, BothAreSaidWithTheReason) {
  EXPECT_EQ(describe({kFp32, 0.151, 0.229}),
            "bf16 products run at 0.151 TFLOP/s in bf16 and at 0.229 through FP32; the latter is "
            "used: of a table.");
  EXPECT_THAT(describe({kBf16, 0.5, 0.2}), HasSubstr("the former is used"));
}

TEST(Bf16Rates, NothingIsSaidOfWhatWasNotMeasured) {
  EXPECT_EQ(describe({kBf16, 0, 0}), "");
  EXPECT_FALSE(of_bf16_rates({kBf16, 0, 0.2}));
}

TEST(Bf16Rates, AreMeasuredOnEachProcessor) {
  const Bf16Rates rates = measure_bf16_rates(bf16_choice(), 0.02);
  EXPECT_GT(rates.bf16_tflops, 0);
  EXPECT_GT(rates.fp32_tflops, 0);
  EXPECT_EQ(rates.choice.because, bf16_choice().because);
}

}  // namespace
}  // namespace demi::doctor
