#include "lab/recipes/plan.h"

#include <gtest/gtest.h>

#include <cmath>

#include "lab/recipes/recipe.h"

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

// As in Hugging Face's get_linear_schedule_with_warmup and torchvision's reference training: the
// decay begins at the full rate where the warm-up ends.
TEST(Schedule, WarmUpRisesInStepsToTheFullRate) {
  Config config;
  config.epochs = 4;
  config.warmup_epochs = 1;
  const auto rule = make_schedule(config, 10);
  EXPECT_DOUBLE_EQ(rule(0, 1.0), 0.1);
  EXPECT_DOUBLE_EQ(rule(4, 1.0), 0.5);
  EXPECT_DOUBLE_EQ(rule(9, 1.0), 1.0);
  EXPECT_DOUBLE_EQ(rule(10, 1.0), 1.0);
  EXPECT_DOUBLE_EQ(rule(39, 1.0), 1.0);

  config.schedule = "linear";
  const auto linear = make_schedule(config, 10);
  EXPECT_DOUBLE_EQ(linear(9, 1.0), 1.0);
  EXPECT_DOUBLE_EQ(linear(10, 1.0), 1.0);
  EXPECT_DOUBLE_EQ(linear(25, 1.0), 0.5) << "half of the 30 steps that are left";
  EXPECT_NEAR(linear(39, 1.0), 1.0 / 30, 1e-12);

  config.schedule = "cosine";
  const auto cosine = make_schedule(config, 10);
  EXPECT_DOUBLE_EQ(cosine(9, 1.0), 1.0);
  EXPECT_DOUBLE_EQ(cosine(19, 1.0), 1.0);
  EXPECT_NEAR(cosine(20, 1.0), 0.75, 1e-12) << "(1 + cos(pi / 3)) / 2, the second of 3 epochs";
  EXPECT_NEAR(cosine(39, 1.0), 0.25, 1e-12);
}

TEST(Schedule, CountsStepsOfAccumulatedBatches) {
  Config config;
  config.epochs = 2;
  config.schedule = "linear";
  config.accumulate = 4;
  const auto options = trainer_options(config, run_of(config), /*batches_per_epoch=*/10, c10::kCPU);
  EXPECT_DOUBLE_EQ(options.schedule(3, 1.0), 0.5) << "3 steps an epoch, 6 in all";
  EXPECT_DOUBLE_EQ(options.schedule(6, 1.0), 0);
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
