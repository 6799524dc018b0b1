#include "demi/train/precision.h"

#include <gtest/gtest.h>

#include "demi/core/error.h"

namespace demi::train {
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

TEST(RunSpec, VariantsSayHowTheLossIsScaled) {
  EXPECT_EQ(parse_run("fp16").loss_scale.kind, LossScale::Kind::automatic);
  EXPECT_EQ(parse_run("fp16:no-scaler").loss_scale.kind, LossScale::Kind::off);
  const RunSpec fixed = parse_run("16-mixed:scale=128");
  EXPECT_EQ(fixed.label, "fp16:scale=128");
  EXPECT_EQ(fixed.loss_scale.kind, LossScale::Kind::fixed);
  EXPECT_EQ(fixed.loss_scale.value, 128);
}

void expect_refused(std::string_view run, std::string_view hint) {
  try {
    parse_run(run);
    FAIL() << run;
  } catch (const UsageError& error) {
    EXPECT_NE(std::string(error.what()).find(hint), std::string::npos) << error.what();
  }
}

TEST(RunSpec, WrongOnesAreAnsweredWithTheNearest) {
  expect_refused("fb16", "did you mean fp16?");
  expect_refused("fp16:noscaler", "did you mean no-scaler?");
  expect_refused("fp16:scale=0", "positive number");
  expect_refused("fp16:scale=1e999", "positive number");
  expect_refused("fp16:scale=12x", "positive number");
  expect_refused("", "no such precision");
}

}  // namespace
}  // namespace demi::train
