#include "lab/doctor/advice.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>

namespace demi::doctor {
namespace {

using ::testing::HasSubstr;

Format measured(const char* dtype, double tflops) {
  return {.dtype = dtype, .is_measured = true, .tflops = tflops, .size = 1024, .over_fp32 = tflops};
}

TEST(Advice, TheFastestFormatIsThatToTrainIn) {
  EXPECT_EQ(best_mixed({measured("fp32", 1), measured("fp16", 3), measured("bf16", 2)}), "fp16");
  EXPECT_EQ(best_mixed({measured("fp32", 1), measured("fp16", 2), measured("bf16", 2)}), "bf16")
      << "it needs no loss scaling";
  EXPECT_EQ(best_mixed({measured("fp32", 1), measured("fp16", 0)}), "");
}

TEST(Advice, FormatsGiveTf32AndOneMixedPrecision) {
  const auto all = of_formats({measured("fp32", 1),
                               measured("tf32", 4),
                               measured("fp16", 7),
                               measured("bf16", 8),
                               {.dtype = "fp8"}});
  ASSERT_EQ(all.size(), 2U);
  EXPECT_EQ(all[0].topic, "tf32");
  EXPECT_EQ(all[0].gain, 4);
  EXPECT_EQ(all[1].topic, "precision");
  EXPECT_THAT(all[1].how, HasSubstr("bf16"));
  EXPECT_THAT(all[1].what, HasSubstr("8.00 times"));
}

TEST(Advice, IsInTheOrderOfItsGainAndOnlyWhatGains) {
  const auto all = in_order({{.topic = "a", .gain = 1.5},
                             {.topic = "none", .gain = 1.04},
                             {.topic = "b", .gain = 2},
                             {.topic = "slower", .gain = 0.5},
                             {.topic = "nan", .gain = std::numeric_limits<double>::quiet_NaN()},
                             {.topic = "c", .gain = 1.05}});
  std::string order;
  for (const Advice& one : all) order += one.topic;
  EXPECT_EQ(order, "bac");
}

TEST(Advice, OfShapesHasTheThreeOfThem) {
  const auto all = of_shapes("fp32", c10::kCPU);
  ASSERT_EQ(all.size(), 3U);
  EXPECT_EQ(all[0].topic, "dimensions");
  EXPECT_EQ(all[1].topic, "batch");
  EXPECT_EQ(all[2].topic, "channels_last");
  for (const Advice& one : all) EXPECT_GT(one.gain, 0) << one.topic;
}

TEST(Advice, OfMemoryIsForTheAllocatorThatReturnsIt) {
  const auto all = of_memory("glibc");
  ASSERT_EQ(all.size(), 1U);
  EXPECT_EQ(all[0].topic, "memory");
  EXPECT_GT(all[0].gain, 0);
  EXPECT_THAT(all[0].how, HasSubstr("demi::keep_memory()"));
  EXPECT_TRUE(of_memory("jemalloc").empty());
}

}  // namespace
}  // namespace demi::doctor
