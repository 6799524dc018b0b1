#include "demi/core/nearest.h"

#include <gtest/gtest.h>

#include <vector>

namespace demi {
namespace {

const std::vector<std::string> kDtypes{"fp32", "tf32", "fp16", "bf16"};

TEST(Nearest, FindsTheWordWithOneLetterWrongOrSwapped) {
  EXPECT_EQ(nearest("fb32", kDtypes), "fp32");
  EXPECT_EQ(nearest("bf61", kDtypes), "bf16");
  EXPECT_EQ(nearest("FP16", kDtypes), "fp16");
}

TEST(Nearest, SaysNothingWhereNothingIsNear) {
  EXPECT_EQ(nearest("double", kDtypes), "");
  EXPECT_EQ(nearest("", kDtypes), "");
  EXPECT_EQ(nearest("x", {}), "");
}

TEST(Nearest, SentenceNamesTheGuessAndTheList) {
  EXPECT_EQ(did_you_mean("fp61", kDtypes), "did you mean fp16? known: fp32, tf32, fp16, bf16");
  EXPECT_EQ(did_you_mean("double", kDtypes), "known: fp32, tf32, fp16, bf16");
}

}  // namespace
}  // namespace demi
