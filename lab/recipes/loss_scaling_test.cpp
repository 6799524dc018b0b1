// The point of the recipe loss-scaling (Micikevicius et al. 2017, section 3.2).
#include <gtest/gtest.h>

#include <cmath>
#include <string>

#include "lab/recipes/compare.h"
#include "lab/settings/recipe.h"

namespace demi::recipes {
namespace {

class LossScaling : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    const settings::Recipe& recipe = settings::find_recipe("loss-scaling");
    const workload::Workload workload = workload::load_workload(recipe.config, c10::kCPU);
    const auto runs = settings::parse_runs(recipe.runs + ",fp16:no-skip");
    comparison_ = compare({.config = recipe.config, .runs = settings::resolve(recipe.config, runs)},
                          workload);
  }
  static const train::History& history(std::size_t run) { return comparison_.runs[run].history; }
  static double first(std::size_t run) { return history(run).epochs.front().loss; }
  static double last(std::size_t run) { return history(run).epochs.back().loss; }

  static inline Comparison comparison_;
  enum { kFp32, kUnscaled, kScaled, kWithoutSkipping };
};

TEST_F(LossScaling, Fp32Learns) {
  EXPECT_FALSE(history(kFp32).failed);
  EXPECT_LT(last(kFp32), 0.1 * history(kFp32).steps.front().loss);
}

// Every gradient is 0, so that each batch has the loss that it had an epoch before.
TEST_F(LossScaling, Fp16StandsStillWithoutAScale) {
  EXPECT_FALSE(history(kUnscaled).failed);
  EXPECT_NEAR(history(kUnscaled).steps.front().loss, history(kFp32).steps.front().loss,
              1e-3 * history(kFp32).steps.front().loss);
  EXPECT_NEAR(last(kUnscaled), first(kUnscaled), 1e-12 * first(kUnscaled)) << "summed in order";
}

TEST_F(LossScaling, Fp16LearnsWithOneAndSkipsTheStepsThatItsGrowthCosts) {
  EXPECT_FALSE(history(kScaled).failed);
  EXPECT_LT(last(kScaled), 0.1 * first(kUnscaled));
  EXPECT_GE(history(kScaled).skipped_steps, 1);
}

TEST_F(LossScaling, Fp16DivergesIfAStepThatOverflowsIsTaken) {
  EXPECT_TRUE(history(kWithoutSkipping).failed);
  EXPECT_EQ(history(kWithoutSkipping).skipped_steps, 0);
  EXPECT_TRUE(std::isnan(history(kWithoutSkipping).steps.back().loss));
  std::size_t step = 0;  // that was skipped with skipping
  while (!history(kScaled).steps[step].skipped) ++step;
  for (std::size_t i = 0; i <= step; ++i)
    EXPECT_EQ(history(kWithoutSkipping).steps[i].loss, history(kScaled).steps[i].loss) << i;
  EXPECT_FALSE(std::isfinite(history(kWithoutSkipping).steps[step + 1].loss));
  const std::string blamed = "step " + std::to_string(step + 1) + " was taken although";
  EXPECT_NE(history(kWithoutSkipping).failed->find(blamed), std::string::npos)
      << *history(kWithoutSkipping).failed;
}

}  // namespace
}  // namespace demi::recipes
