#include "lab/settings/optimizer_options.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <string>

#include "demi/core/error.h"
#include "lab/settings/resolved.h"

namespace demi::settings {
namespace {

using ::testing::HasSubstr;

template <class Call>
std::string complaint(const Call& call) {
  try {
    call();
  } catch (const UsageError& error) {
    return error.what();
  }
  return "accepted";
}

StateDict numbers(const std::string& optimizer, const std::string& options) {
  Config config;
  config.optimizer = optimizer;
  config.optimizer_options = options;
  config.decay_by_rule = true;
  const torch::nn::Linear layer(2, 2);
  const auto one = make_optimizer(resolve(config), {.module = layer.ptr(), .forward = {}});
  const auto groups = dynamic_cast<optim::Optimizer&>(*one).group_numbers();
  EXPECT_EQ(groups.size(), 2U);
  for (const char* name : {"betas.0", "eps", "alpha"})
    EXPECT_TRUE(!groups[0].contains(name) || groups[0].at(name) == groups[1].at(name)) << name;
  return groups[0];
}

TEST(OptimizerOptions, ReachEveryGroupByName) {
  const StateDict rmsprop = numbers("rmsprop", "alpha=0.9,centered=true,eps=1e-3");
  EXPECT_EQ(rmsprop.at("alpha"), 0.9);
  EXPECT_EQ(rmsprop.at("centered"), 1);
  EXPECT_EQ(rmsprop.at("eps"), 1e-3);
  const StateDict nadam = numbers("nadam", "beta1=0.8,momentum_decay=0.1,decoupled_weight_decay=1");
  EXPECT_EQ(nadam.at("betas.0"), 0.8);
  EXPECT_EQ(nadam.at("betas.1"), 0.999);
  EXPECT_EQ(nadam.at("momentum_decay"), 0.1);
  EXPECT_EQ(nadam.at("decoupled_weight_decay"), 1);
  EXPECT_EQ(numbers("radam", "beta2=0.9").at("betas.1"), 0.9);
  const StateDict adagrad = numbers("adagrad", "lr_decay=0.1,initial_accumulator_value=0.5");
  EXPECT_EQ(adagrad.at("lr_decay"), 0.1);
  EXPECT_EQ(adagrad.at("initial_accumulator_value"), 0.5);
  EXPECT_EQ(numbers("lamb", "trust_limit=10").at("trust_limit"), 10);
}

TEST(OptimizerOptions, BetasAreASettingOfTheirOwn) {
  const auto seen = [](const std::string& optimizer, const std::string& betas) {
    Config config;
    config.optimizer = optimizer;
    config.betas = betas;
    config.optimizer_options = optimizer == "adamw" ? "eps=1e-3" : "";
    return complaint([&] {
      const torch::nn::Linear layer(2, 2);
      const auto one = make_optimizer(resolve(config), {.module = layer.ptr(), .forward = {}});
      const auto group = dynamic_cast<optim::Optimizer&>(*one).group_numbers()[0];
      EXPECT_EQ(group.at("betas.0"), 0.8);
      EXPECT_EQ(group.at("betas.1"), 0.95);
    });
  };
  for (const char* name : {"adam", "adamw", "lamb", "lion", "nadam", "radam"})
    EXPECT_EQ(seen(name, "0.8,0.95"), "accepted") << name;
  EXPECT_THAT(seen("sgd", "0.8,0.95"), HasSubstr("SGD has no two decay rates"));
  for (const char* bad : {"0.8", "0.8,", ",0.8", "0.8;0.95", "0.8,0.95,0.9", "0.8,1", "-0.1,0.95",
                          "nan,0.95", "0.8, 0.95"})
    EXPECT_NE(seen("adamw", bad), "accepted") << bad;
}

TEST(OptimizerOptions, WhatIsNoOptionIsNamed) {
  const auto seen = [](const std::string& optimizer, const std::string& options) {
    return complaint([&] { numbers(optimizer, options); });
  };
  EXPECT_THAT(seen("nadam", "alpha=0.9"), HasSubstr("NAdam has no such option"));
  EXPECT_THAT(seen("adamw", "beta3=0.9"), HasSubstr("beta2"));  // the nearest
  EXPECT_THAT(seen("adamw", "lr=0.1"), HasSubstr("--lr"));
  EXPECT_THAT(seen("adamw", "weight_decay=0.1"), HasSubstr("--weight-decay"));
  EXPECT_THAT(seen("sgd", "nesterov=1"), HasSubstr("give --nesterov"));
  EXPECT_THAT(seen("adamw", "nesterov=1"), HasSubstr("AdamW has no such option"));
  EXPECT_THAT(seen("adamw", "muon_eps=1"), HasSubstr("AdamW has no such option"));
  EXPECT_THAT(seen("muon", "muon_ep=1"), HasSubstr("muon_eps"));
  EXPECT_THAT(seen("muon", "muon_eps=-1"), HasSubstr("eps is out of range"));
  EXPECT_THAT(seen("muon", "lr=1"), HasSubstr("give --lr"));
  EXPECT_THAT(seen("adamw", "eps=1,eps=2"), HasSubstr("twice"));
  for (const char* bad : {"eps", "eps=", "=1", "eps=nan", "eps=inf", "eps=1x", "eps=1,", ",",
                          " eps=1", "eps 1", "eps==1"})
    EXPECT_NE(seen("adamw", bad), "accepted") << bad;
  EXPECT_THAT(seen("adamw", "eps=-1"), HasSubstr("eps is out of range"));
  EXPECT_THAT(seen("adamw", "beta2=1"), HasSubstr("beta2 is out of range"));
  EXPECT_THAT(seen("adamw", "amsgrad=2"), HasSubstr("flag"));
  EXPECT_THAT(seen("rmsprop", "alpha=-0.5"), HasSubstr("alpha is out of range"));
  EXPECT_THAT(seen("adagrad", "initial_accumulator_value=-1"),
              HasSubstr("initial_accumulator_value is out of range"));
}

// Before data are read and a network is made.
TEST(OptimizerOptions, AreCheckedWhenTheRunIsResolved) {
  Config config;
  config.optimizer_options = "alpha=0.9";
  EXPECT_THROW(resolve(config), UsageError);
}

}  // namespace
}  // namespace demi::settings
