#include "demi/distributed/bucket_plan.h"

#include <gtest/gtest.h>

#include <utility>

namespace demi::distributed {
namespace {

using c10::ScalarType;
using Indices = std::vector<std::size_t>;

PlannedParameter one(std::int64_t elements, ScalarType dtype = ScalarType::Float) {
  return {elements, c10::Device(c10::DeviceType::CPU), dtype};
}

TEST(BucketPlan, ClosesABucketAtItsLimit) {
  // 4 bytes an element: the first bucket closes at 40 bytes, the others at 80.
  const BucketPlan plan = plan_buckets({one(10), one(10), one(10), one(30), one(1)},
                                       {4, 3, 2, 1, 0}, std::nullopt, {40, 80});
  ASSERT_EQ(plan.buckets.size(), 3U);
  EXPECT_EQ(plan.buckets[0].parameters, (Indices{4, 3}));
  EXPECT_EQ(plan.buckets[0].offsets, (std::vector<std::int64_t>{0, 1}));
  EXPECT_EQ(plan.buckets[0].elements, 31);
  EXPECT_EQ(plan.buckets[1].parameters, (Indices{2, 1}));
  EXPECT_EQ(plan.buckets[2].parameters, (Indices{0}));
  EXPECT_EQ(plan.bucket, (Indices{2, 1, 1, 0, 0}));
  EXPECT_EQ(plan.slot, (Indices{0, 1, 0, 1, 0}));
}

// 4 bytes an element. What is sent after backward is as small as the first bucket, or one gradient,
// unless that parts little.
TEST(BucketPlan, TheLastBucketIsSmall) {
  const auto last_of = [](const std::vector<std::int64_t>& elements) {
    std::vector<PlannedParameter> parameters;
    Indices order;
    for (const std::int64_t count : elements) {
      order.push_back(order.size());
      parameters.push_back(one(count));
    }
    const BucketPlan plan = plan_buckets(parameters, order, std::nullopt, {40, 120});
    for (std::size_t i = 0; i < order.size(); ++i) {
      const Bucket& bucket = plan.buckets.at(plan.bucket[i]);
      EXPECT_EQ(bucket.parameters.at(plan.slot[i]), i);
      EXPECT_LE(bucket.offsets.at(plan.slot[i]) + elements[i], bucket.elements);
    }
    return std::pair(plan.buckets.size(), plan.buckets.back().parameters);
  };
  // 10, 15 + 15, 12 + 8 + 5 + 3 + 2 elements: of the last ones 5 + 3 + 2 fit into 40 bytes.
  EXPECT_EQ(last_of({10, 15, 15, 12, 8, 5, 3, 2}), std::pair(4UL, Indices({5, 6, 7})));
  // 10, 9 + 9 + 9: one of the three fits.
  EXPECT_EQ(last_of({10, 9, 9, 9}), std::pair(3UL, Indices{3}));
  // 10, 3 + 25: a gradient that does not fit is alone.
  EXPECT_EQ(last_of({10, 3, 25}), std::pair(3UL, Indices{2}));
  // 10, 4 + 16: twice as much as the first one stays whole, and a single gradient does.
  EXPECT_EQ(last_of({10, 4, 16}), std::pair(2UL, Indices({1, 2})));
  EXPECT_EQ(last_of({10, 4, 17}), std::pair(3UL, Indices{2}));
  EXPECT_EQ(last_of({3, 3, 4}), std::pair(1UL, Indices({0, 1, 2})));
  EXPECT_EQ(last_of({35}), std::pair(1UL, Indices{0}));
  EXPECT_EQ(plan_buckets({}, {}, std::nullopt, {40, 120}).buckets.size(), 0U);
}

// The offsets of what was parted begin at 0 again.
TEST(BucketPlan, TheLastBucketBeginsAtItsOwnFirstGradient) {
  const BucketPlan plan =
      plan_buckets({one(10), one(15), one(6), one(4)}, {0, 1, 2, 3}, std::nullopt, {40, 120});
  ASSERT_EQ(plan.buckets.size(), 3U);
  EXPECT_EQ(plan.buckets[1].elements, 15);
  EXPECT_EQ(plan.buckets[1].offsets, std::vector<std::int64_t>{0});
  EXPECT_EQ(plan.buckets[2].elements, 10);
  EXPECT_EQ(plan.buckets[2].offsets, (std::vector<std::int64_t>{0, 6}));
}

TEST(BucketPlan, FlagsStandBehindTheGradients) {
  const BucketPlan plan = plan_buckets({one(10), one(5)}, {0, 1}, std::nullopt, {1000, 1000});
  ASSERT_EQ(plan.buckets.size(), 1U);
  EXPECT_EQ(plan.buckets[0].used_flag(0), 15);
  EXPECT_EQ(plan.buckets[0].used_flag(1), 16);
  EXPECT_EQ(plan.buckets[0].round_flag(Bucket::RoundFlag::kWider), 17);
  EXPECT_EQ(plan.buckets[0].round_flag(Bucket::RoundFlag::kLate), 19);
  EXPECT_EQ(plan.buckets[0].all_elements(), 20);
}

TEST(BucketPlan, EachDtypeHasItsOwnBuckets) {
  const std::vector<PlannedParameter> parameters{one(10, ScalarType::BFloat16), one(10),
                                                 one(10, ScalarType::BFloat16),
                                                 one(10, ScalarType::Double)};
  const BucketPlan own = plan_buckets(parameters, {0, 1, 2, 3}, std::nullopt, {1000, 1000});
  ASSERT_EQ(own.buckets.size(), 3U);
  // In the order of their last gradient.
  EXPECT_EQ(own.buckets[0].dtype, ScalarType::Float);
  EXPECT_EQ(own.buckets[1].dtype, ScalarType::BFloat16);
  EXPECT_EQ(own.buckets[1].parameters, (Indices{0, 2}));
  EXPECT_EQ(own.buckets[2].dtype, ScalarType::Double);
  const BucketPlan wire = plan_buckets(parameters, {0, 1, 2, 3}, ScalarType::Float, {1000, 1000});
  ASSERT_EQ(wire.buckets.size(), 2U);
  EXPECT_EQ(wire.buckets[0].parameters, (Indices{0, 1, 2}));
  EXPECT_EQ(wire.buckets[1].dtype, ScalarType::Double);
  EXPECT_EQ(wire.gradient_dtype[0], ScalarType::BFloat16);
}

TEST(BucketPlan, WiderDtypeHoldsBoth) {
  EXPECT_EQ(wider_of(ScalarType::Half, ScalarType::BFloat16), ScalarType::Float);
  EXPECT_EQ(wider_of(ScalarType::BFloat16, ScalarType::Float), ScalarType::Float);
  EXPECT_EQ(wider_of(ScalarType::Double, ScalarType::Half), ScalarType::Double);
  EXPECT_EQ(wider_of(ScalarType::Half, ScalarType::Half), ScalarType::Half);
}

}  // namespace
}  // namespace demi::distributed
