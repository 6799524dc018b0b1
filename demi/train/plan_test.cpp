#include "demi/train/plan.h"

#include <gtest/gtest.h>

#include <cmath>

#include "demi/train/recipe.h"

namespace demi::train {
namespace {

// Loshchilov and Hutter 2017, equation 5, stepped per epoch: 0.1 / 2 (1 + cos(pi epoch / 200)).
TEST(Schedule, CosineOfThePublishedRecipeMovesPerEpoch) {
  const Config& config = find_recipe("cifar10-resnet18").config;
  const auto rule = make_schedule(config, 391);
  for (const int64_t epoch : {0, 1, 4, 100, 199}) {
    const double expected =
        0.05 * (1 + std::cos(std::acos(-1.0) * static_cast<double>(epoch) / 200));
    EXPECT_NEAR(rule(epoch * 391, 0.1), expected, 1e-12) << epoch;
    EXPECT_EQ(rule(epoch * 391, 0.1), rule(epoch * 391 + 390, 0.1)) << "the same all epoch long";
  }
}

TEST(Schedule, WarmUpRisesInStepsAndEndsWhereTheScheduleStands) {
  Config config;
  config.epochs = 4;
  config.warmup_epochs = 1;
  const auto rule = make_schedule(config, 10);
  EXPECT_DOUBLE_EQ(rule(0, 1.0), 0.1);
  EXPECT_DOUBLE_EQ(rule(4, 1.0), 0.5);
  EXPECT_DOUBLE_EQ(rule(9, 1.0), 1.0);
  EXPECT_DOUBLE_EQ(rule(10, 1.0), 1.0);
  config.schedule = "linear";
  EXPECT_DOUBLE_EQ(make_schedule(config, 10)(20, 1.0), 0.5) << "half of 40 steps";
}

TEST(Plan, SwitchesTellAutocastAndScalerApart) {
  Config config;
  config.precision = "fp16";
  config.loss_scale = "128";
  const auto both = trainer_options(config, run_of(config), 1, c10::kCPU);
  EXPECT_TRUE(both.autocast);
  EXPECT_EQ(both.loss_scale.kind, LossScale::Kind::fixed);
  config.scaler = false;
  EXPECT_EQ(trainer_options(config, run_of(config), 1, c10::kCPU).loss_scale.kind,
            LossScale::Kind::off);
  config.autocast = false;
  EXPECT_FALSE(trainer_options(config, run_of(config), 1, c10::kCPU).autocast);
}

}  // namespace
}  // namespace demi::train
