#include "lab/bench/autocast.h"

#include <gtest/gtest.h>

#include "demi/weights/weights.h"

namespace demi::bench {
namespace {

TEST(BenchAutocast, MeasuresEveryOpAndCountsThreeCastsAStep) {
  const auto report = measure_autocast({.rounds = 1, .iterations = 20, .width = 32, .batch = 4});
  EXPECT_EQ(report.ops.size(), 10u);
  for (const auto& op : report.ops) {
    EXPECT_GT(op.plain_ns, 0) << op.name;
    EXPECT_GT(op.demi_over_plain, 0) << op.name;
  }
  EXPECT_EQ(report.step.width, 32);
  EXPECT_GT(report.step.demi_ms, 0);
  EXPECT_GT(report.step.bf16_parameters_ms, 0);
  EXPECT_GT(report.step.demi_over_bf16_parameters, 0);
  // Three layers of weight and bias; on LibTorch 2.11 keeping copies is opt-in.
  const int weight_casts = weights::mode() == weights::Mode::keep ? 0 : 6;
  EXPECT_EQ(report.weight_casts_per_step, weight_casts);
  EXPECT_EQ(report.casts_per_step, 3 + weight_casts) << "input, output to the loss, its gradient";
}

TEST(BenchReductions, Fp32ReductionsGainDigits) {
  const auto report = measure_fp32_reductions(1);
  EXPECT_LT(report.policy_error, report.default_error);
  EXPECT_GT(report.policy_error, 0);
}

}  // namespace
}  // namespace demi::bench
