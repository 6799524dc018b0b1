#include "demi/loop/precision.h"

#include <gtest/gtest.h>

#include "demi/core/error.h"

namespace demi::loop {
namespace {

TEST(Precision, MixedKeepsWeightsInFp32AndComputesInSixteenBits) {
  const Precision& bf16 = parse_precision("bf16");
  EXPECT_EQ(bf16.weights, c10::kFloat);
  EXPECT_EQ(bf16.autocast, c10::kBFloat16);
  EXPECT_EQ(bf16.shipped(), c10::kBFloat16);
  EXPECT_FALSE(parse_precision("bf16-true").is_mixed());
  EXPECT_EQ(parse_precision("fp32").shipped(), c10::kFloat);
  EXPECT_TRUE(parse_precision("tf32").tf32);
  EXPECT_EQ(mixed_precision_of(c10::kCUDA).name, "fp16");
  EXPECT_EQ(mixed_precision_of(c10::kCPU).name, "bf16");
}

TEST(Precision, TakesLightningsAndKerasNames) {
  EXPECT_EQ(parse_precision("16-mixed").name, "fp16");
  EXPECT_EQ(parse_precision("bf16-mixed").name, "bf16");
  EXPECT_EQ(parse_precision("32-true").name, "fp32");
  EXPECT_EQ(parse_precision("16-true").name, "fp16-true");
  EXPECT_EQ(parse_precision("mixed_bfloat16").name, "bf16");
}

void expect_refused(std::string_view scale) {
  try {
    parse_loss_scale(scale);
    FAIL() << scale;
  } catch (const UsageError& error) {
    EXPECT_NE(std::string(error.what()).find("positive number"), std::string::npos) << error.what();
  }
}

TEST(LossScale, IsAWordOrAPositiveNumber) {
  EXPECT_EQ(parse_loss_scale("off").kind, LossScale::Kind::off);
  EXPECT_EQ(parse_loss_scale("statistics").kind, LossScale::Kind::statistics);
  EXPECT_EQ(parse_loss_scale("128").kind, LossScale::Kind::fixed);
  EXPECT_EQ(parse_loss_scale("128").value, 128);
  for (const char* wrong : {"0", "-1", "1e999", "12x", "", "ofF"}) expect_refused(wrong);
}

}  // namespace
}  // namespace demi::loop
