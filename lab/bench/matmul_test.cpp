#include "lab/bench/matmul.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "demi/core/error.h"
#include "demi/profile/memory.h"
#include "lab/bench/progress_testing.h"

namespace demi::bench {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(Matmul, HasARowForEachKindAndSize) {
  ToldParts told;
  const MatmulBenchResult result = bench_matmul(
      {.sizes = {33, 8}, .iterations = 3, .seconds = 0.05, .on_part = told.on_part()}, c10::kCPU);
  EXPECT_THAT(told.parts(), ElementsAre("size 8", "size 33", "the machine's rates"));
  ASSERT_EQ(result.rows.size(), 10U) << "two sizes of fp32, and fp16 and bf16 twice";
  EXPECT_EQ(result.rows.front().size, 8) << "by size";
  for (std::size_t i = 0; i < result.rows.size(); ++i) {
    const MatmulRow& row = result.rows[i];
    const double n = static_cast<double>(row.size);
    EXPECT_DOUBLE_EQ(row.tflops, 2 * n * n * n / row.seconds / 1e12);
    EXPECT_GE(row.iterations, 1);
    EXPECT_LE(row.iterations, 3);
    EXPECT_GT(row.of_peak, 0);
    const MatmulRow& fp32 = result.rows[i / 5 * 5];
    EXPECT_EQ(fp32.kind, (ProductKind{"fp32"}));
    EXPECT_DOUBLE_EQ(row.speedup, fp32.seconds / row.seconds);
  }
  EXPECT_EQ(result.peak_tflops.size(), 3U);
  EXPECT_GT(result.copy_gb_per_s, 0);
}

// The share of the roofline is of the fastest product of the dtype in the run, so that it is 1 at
// most where products are the limit.
TEST(Matmul, ThePeakIsTheBestOfTheRun) {
  const MatmulBenchResult result = bench_matmul(
      {.sizes = {64}, .dtypes = {"bf16"}, .iterations = 2, .seconds = 0.05}, c10::kCPU);
  ASSERT_EQ(result.rows.size(), 3U) << "fp32 is always timed";
  for (const MatmulRow& row : result.rows)
    EXPECT_LE(row.tflops, result.peak_tflops.at(row.kind.dtype)) << row.kind.dtype;
}

// Of so little time no product of the second size fits: (2000 / 2)^3 times the first's.
TEST(Matmul, WhatWouldTakeTooLongIsLeftOutAndNamed) {
  const MatmulBenchResult result = bench_matmul(
      {.sizes = {2, 2000}, .dtypes = {"bf16"}, .iterations = 1, .seconds = 1e-6}, c10::kCPU);
  ASSERT_EQ(result.rows.size(), 4U) << "three of size 2, and FP32";
  EXPECT_EQ(result.rows.back().size, 2000);
  EXPECT_EQ(result.rows.back().kind.dtype, "fp32");
  ASSERT_EQ(result.left_out.size(), 2U);
  for (const MatmulLeftOut& one : result.left_out) {
    EXPECT_EQ(one.kind.dtype, "bf16");
    EXPECT_EQ(one.size, 2000);
    EXPECT_GT(one.foreseen_seconds, 1e-6);
  }
}

std::string refusal(const MatmulBenchOptions& options) {
  try {
    bench_matmul(options, c10::kCPU);
  } catch (const UsageError& error) {
    return error.what();
  }
  return "accepted";
}

TEST(Matmul, SizesOutOfRangeAreRefusedWithTheBound) {
  EXPECT_THAT(refusal({.sizes = {0}}), HasSubstr("below 1; seen: 0; accepted: 1 to "));
  EXPECT_THAT(refusal({.sizes = {16, -5}}), HasSubstr("below 1; seen: 16,-5"));
  EXPECT_THAT(refusal({.sizes = {}}), HasSubstr("no size"));
  EXPECT_THAT(refusal({.sizes = {int64_t{1} << 40}}), HasSubstr("beyond the free memory"));
  EXPECT_THAT(refusal({.sizes = {8}, .dtypes = {"tf32"}}), HasSubstr("no such dtype on cpu"));
  EXPECT_THAT(refusal({.sizes = {8}, .dtypes = {"bf61"}}), HasSubstr("did you mean bf16?"));
  EXPECT_THAT(refusal({.sizes = {8}, .iterations = 0}), HasSubstr("iterations"));
  EXPECT_THAT(refusal({.sizes = {8}, .seconds = 0}), HasSubstr("seconds"));
}

// Three FP32 matrices, three of 16 bits, three in FP32 in addition and one in FP64 are 38 bytes an
// element, of 80 % of what is free.
TEST(Matmul, TheBoundFollowsTheFreeMemory) {
  EXPECT_EQ(most_size(47'500'000), 1000);
  EXPECT_EQ(most_size(0), 0);
  EXPECT_EQ(most_size(-1), 0);
  EXPECT_GT(profile::free_memory(c10::kCPU), 0);
}

}  // namespace
}  // namespace demi::bench
