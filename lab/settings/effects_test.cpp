#include "lab/settings/effects.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <vector>

#include "demi/core/error.h"
#include "lab/settings/optimizers.h"
#include "lab/settings/recipe.h"
#include "lab/settings/resolved.h"
#include "lab/settings/schedules.h"

namespace demi::settings {
namespace {

using ::testing::HasSubstr;

Config recipe_with(const std::string& recipe, const std::vector<Assignment>& given) {
  Config config = find_recipe(recipe).config;
  for (const Assignment& a : given) set(config, a.name, a.text, a.source);
  return config;
}

std::string refusal(const std::string& recipe, const std::vector<Assignment>& given) {
  try {
    check_effects(recipe_with(recipe, given), given);
  } catch (const UsageError& error) {
    return error.what();
  }
  return "";
}

TEST(Effects, ASettingThatIsAskedForDoesSomethingOrIsRefused) {
  EXPECT_THAT(refusal("folder-resnet50", {{"crop-padding", "4", "--crop-padding"}}),
              HasSubstr("--crop-area"));
  EXPECT_EQ(refusal("cifar10-cnn", {{"crop-padding", "4", "--crop-padding"}}), "");
  EXPECT_THAT(refusal("imdb-lstm", {{"horizontal-flip", "true", "--horizontal-flip"}}),
              HasSubstr("about pictures"));
  EXPECT_THAT(refusal("fashion-cnn", {{"max-length", "5", "DEMI_MAX_LENGTH"}}),
              HasSubstr("[DEMI_MAX_LENGTH]"));
  EXPECT_THAT(refusal("cifar10-cnn", {{"momentum", "0.9", "--momentum"}}), HasSubstr("sgd"));
  EXPECT_EQ(refusal("cifar10-cnn",
                    {{"momentum", "0.9", "--momentum"}, {"optimizer", "sgd", "--optimizer"}}),
            "");
}

// Muon's momentum is Nesterov's by default (torch.optim.Muon): neither form of the flag changes it.
TEST(Effects, NesterovIsAFlagOfSgdAlone) {
  const Assignment muon{"optimizer", "muon", "--optimizer"}, sgd{"optimizer", "sgd", "--optimizer"},
      on{"nesterov", "true", "--nesterov"}, off{"nesterov", "false", "--no-nesterov"};
  for (const Assignment& flag : {on, off}) {
    EXPECT_THAT(refusal("cifar10-cnn", {muon, flag}), HasSubstr("--optimizer-options nesterov=0"));
    EXPECT_EQ(refusal("cifar10-cnn", {sgd, flag}), "");
  }
  EXPECT_EQ(refusal("cifar10-cnn", {muon, {"nesterov", "false", "nesterov in c.json"}}), "");
  EXPECT_EQ(refusal("cifar10-cnn", {off}), "");
}

// A file and a recipe have all settings, and a value that changes nothing asks for nothing.
TEST(Effects, AFlagThatIsOnByDefaultAsksToo) {
  EXPECT_THAT(refusal("gpt2", {{"block", "llama", "--block"}, {"bias", "true", "--bias"}}),
              HasSubstr("--block gpt2"));
  EXPECT_EQ(refusal("gpt2", {{"block", "llama", "--block"}, {"bias", "false", "--no-bias"}}), "");
}

TEST(Effects, WhatOneRankAndDataInMemoryHaveNoUseFor) {
  const Assignment sync{"sync-batch-norm", "true", "--sync-batch-norm"};
  EXPECT_THAT(refusal("cifar10-resnet18", {sync}), HasSubstr("this run has one"));
  EXPECT_EQ(refusal("cifar10-resnet18", {sync, {"ranks", "2", "--ranks"}}), "");
  EXPECT_THAT(refusal("mlp", {{"data-dir", "somewhere", "--data-dir"}}),
              HasSubstr("have no files"));
  EXPECT_EQ(refusal("mlp", {{"data-dir", "somewhere", "DEMI_DATA_DIR"}}), "");
  EXPECT_EQ(refusal("cifar10-cnn", {{"data-dir", "somewhere", "--data-dir"}}), "");
}

TEST(Effects, APolicyIsAboutAnAutocastRegion) {
  const Assignment fp32{"precision", "fp32", "--precision"},
      bf16{"precision", "bf16", "--precision"}, fp8{"precision", "fp8", "--precision"},
      stored{"precision", "bf16-true", "--precision"}, none{"autocast", "false", "--no-autocast"};
  for (const Assignment& asked : {Assignment{"op-policy", "softmax fp32\n", "--op-policy"},
                                  Assignment{"fp32-part", "fc", "--fp32-part"},
                                  Assignment{"autocast", "true", "--autocast"}}) {
    EXPECT_EQ(refusal("mlp", {bf16, asked}), "");
    EXPECT_EQ(refusal("mlp", {fp8, asked}), "");
    EXPECT_EQ(refusal("mlp", {{"precision", "mixed", "--precision"}, asked}), "");
    EXPECT_THAT(refusal("mlp", {fp32, asked}), HasSubstr("--precision bf16"));
    EXPECT_THAT(refusal("mlp", {stored, asked}), HasSubstr("--precision bf16"));
  }
  const Assignment part{"fp32-part", "fc", "--fp32-part"};
  EXPECT_THAT(refusal("mlp", {bf16, none, part}), HasSubstr("region"));
  EXPECT_EQ(refusal("mlp", {fp32, {"what-if", "bf16", "--what-if"}, part}), "");
  EXPECT_EQ(refusal("mlp", {fp32, none}), "") << "it asks for what is so";
}

TEST(Effects, NothingIsAskedForByAFileARecipeOrTheUsualValue) {
  EXPECT_EQ(refusal("mlp", {{"crop-padding", "4", "crop_padding in c.json"}}), "");
  EXPECT_EQ(refusal("mlp", {{"momentum", "0", "--momentum"}}), "");
  for (const Recipe& recipe : recipes())
    EXPECT_NO_THROW(check_effects(recipe.config, {})) << recipe.name;
}

// Nobody asked for the betas of gpt2's AdamW, nor for the length of its schedule.
TEST(Effects, WhatARecipeSaysOfItsOwnRuleAndScheduleExcludesNoOther) {
  const auto is_accepted = [](const Config& config) {
    try {
      check(config);
      resolve(config, c10::kCPU);
    } catch (const UsageError&) {
      return false;
    }
    return true;
  };
  std::vector<Assignment> others;
  for (const OptimizerKind& kind : optimizer_kinds())
    others.push_back({"optimizer", kind.name, "--optimizer"});
  for (const ScheduleKind& kind : schedule_kinds())
    others.push_back({"schedule", kind.name, "--schedule"});
  for (const Recipe& recipe : recipes())
    for (const Assignment& other : others) {
      if (!is_accepted(recipe.config)) continue;  // it wants a folder, say
      Config config = recipe.config;
      leave_out_for_others(config, {&other, 1});
      set(config, other.name, other.text, other.source);
      EXPECT_TRUE(is_accepted(config)) << recipe.name << " with " << other.text;
    }
  Config nesterov = find_recipe("cifar10-cnn").config;
  nesterov.optimizer = "sgd";
  nesterov.momentum = 0.9;
  nesterov.nesterov = true;
  for (const Assignment& other : others) {
    Config config = nesterov;
    leave_out_for_others(config, {&other, 1});
    set(config, other.name, other.text, other.source);
    EXPECT_EQ(config.nesterov, config.optimizer == "sgd") << other.text;
    EXPECT_TRUE(is_accepted(config)) << other.text;
  }
  Config own = find_recipe("gpt2").config;
  const std::vector<Assignment> same{{"optimizer", own.optimizer, "--optimizer"},
                                     {"schedule", own.schedule, "--schedule"}};
  leave_out_for_others(own, same);
  EXPECT_EQ(to_json(own), to_json(find_recipe("gpt2").config));
}

TEST(Effects, AScaleMustMoveForItsRule) {
  const Assignment growth{"growth-interval", "5", "--growth-interval"};
  EXPECT_THAT(refusal("fashion-cnn", {growth}), HasSubstr("no loss scale moves"));
  EXPECT_EQ(refusal("fashion-cnn", {growth, {"precision", "fp16", "--precision"}}), "");
  EXPECT_EQ(refusal("fashion-cnn", {growth, {"precision", "mixed", "--mp"}}), "");
  EXPECT_EQ(refusal("fashion-cnn", {growth, {"loss-scale", "dynamic", "--loss-scale"}}), "");
  EXPECT_NE(
      refusal("fashion-cnn",
              {growth, {"precision", "fp16", "--precision"}, {"loss-scale", "64", "--loss-scale"}}),
      "");
}

}  // namespace
}  // namespace demi::settings
