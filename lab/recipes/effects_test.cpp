#include "lab/recipes/effects.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <vector>

#include "demi/core/error.h"
#include "lab/recipes/recipe.h"

namespace demi::recipes {
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

// A file and a recipe have all settings, and a value that changes nothing asks for nothing.
TEST(Effects, NothingIsAskedForByAFileARecipeOrTheUsualValue) {
  EXPECT_EQ(refusal("mlp", {{"crop-padding", "4", "crop_padding in c.json"}}), "");
  EXPECT_EQ(refusal("mlp", {{"momentum", "0", "--momentum"}}), "");
  for (const Recipe& recipe : recipes())
    EXPECT_NO_THROW(check_effects(recipe.config, {})) << recipe.name;
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
}  // namespace demi::recipes
