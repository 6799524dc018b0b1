#include "lab/recipes/model_flops.h"

#include <gtest/gtest.h>

namespace demi::recipes {
namespace {

TEST(ModelFlops, AreOfTheTokensOfAllEpochsOverTheirTime) {
  train::History history;
  history.epochs = {{.epoch = 1, .examples = 30, .seconds = 2},
                    {.epoch = 2, .examples = 10, .seconds = 3}};
  const auto flops = model_flops(history, /*tokens_of_example=*/64, 5e6, 1e9);
  ASSERT_TRUE(flops);
  EXPECT_DOUBLE_EQ(flops->tokens_per_second, 40 * 64 / 5.0);
  EXPECT_DOUBLE_EQ(flops->per_second(), 512 * 5e6);
  EXPECT_DOUBLE_EQ(flops->share().value(), 2.56);
}

TEST(ModelFlops, WhatIsNotKnownIsNoNumber) {
  train::History history;
  EXPECT_FALSE(model_flops(history, 64, 5e6, 1e9)) << "no epoch";
  history.epochs = {{.epoch = 1, .examples = 30, .seconds = 2}};
  EXPECT_FALSE(model_flops(history, 64, 0, 1e9)) << "a model without a formula";
  EXPECT_FALSE(model_flops(history, 64, 5e6, 0)->share()) << "no peak";
}

}  // namespace
}  // namespace demi::recipes
