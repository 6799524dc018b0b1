#include "lab/recipes/plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/linear.h>

#include <cmath>

#include "demi/core/error.h"
#include "lab/recipes/optimizers.h"
#include "lab/recipes/recipe.h"

namespace demi::train {
namespace {

using ::testing::HasSubstr;

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

std::string refusal(const Config& config) {
  try {
    const torch::nn::Linear layer(2, 2);
    make_optimizer(config, {.module = layer.ptr(), .forward = {}});
    make_schedule(config, 10);
  } catch (const UsageError& error) {
    return error.what();
  }
  return "no UsageError";
}

// A public struct holds any word: what is not in the list must not train with something else.
TEST(Plan, AnUnknownWordIsRefusedAndNeverTrainsWithAnother) {
  Config config;
  config.optimizer = "Adam";
  EXPECT_THAT(refusal(config), HasSubstr("did you mean adam?"));
  EXPECT_THROW(check(config), UsageError);
  config = {};
  config.schedule = "Cosine";
  EXPECT_THAT(refusal(config), HasSubstr("did you mean cosine?"));
  EXPECT_THROW(check(config), UsageError);
  config = {};
  config.normalize = "Half";
  EXPECT_THROW(check(config), UsageError) << "which meant no normalization";
}

TEST(Plan, EveryOptimizerOfTheListIsMadeWithTheConfigsNumbers) {
  const torch::nn::Linear layer(2, 2);
  for (const OptimizerKind& kind : optimizer_kinds()) {
    SCOPED_TRACE(kind.name);
    Config config;
    config.optimizer = kind.name;
    config.lr = 0.125;
    const auto one = make_optimizer(config, {.module = layer.ptr(), .forward = {}});
    ASSERT_EQ(one->param_groups().size(), 1u);
    EXPECT_EQ(one->param_groups()[0].params().size(), 2u);
    EXPECT_EQ(one->param_groups()[0].options().get_lr(), 0.125);
    config.decay_by_rule = true;
    const auto two = make_optimizer(config, {.module = layer.ptr(), .forward = {}});
    ASSERT_EQ(two->param_groups().size(), 2u);
    EXPECT_EQ(two->param_groups()[1].params().size(), 1u) << "the bias";
  }
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
