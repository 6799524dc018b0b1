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

// PyTorch's module.half() makes weights of 16 bits; --half of other programs is mixed precision.
TEST(Precision, AWordThatSaysTooLittleIsRefusedWithWhatItMayMean) {
  for (const auto& [word, meant] : {std::pair{"half", "fp16 (mixed precision) or fp16-true"},
                                    {"amp", "fp16 (on a GPU) or bf16 (on a CPU)"},
                                    {"double", "fp64"},
                                    {"fp99", "fp"}}) {
    try {
      parse_precision(word);
      FAIL() << word;
    } catch (const UsageError& error) {
      const std::string text = error.what();
      EXPECT_NE(text.find(std::string("did you mean ") + meant), text.npos) << text;
      EXPECT_NE(text.find("known: fp32, tf32"), text.npos) << text;
    }
  }
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
