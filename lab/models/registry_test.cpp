#include "lab/models/registry.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>

#include <map>
#include <string>
#include <utility>

#include "demi/core/error.h"
#include "lab/models/resnet.h"

namespace demi::models {
namespace {

int64_t parameters_of(std::string_view name, const ModelOptions& options = {}) {
  return parameter_count(*make_model(name, options, 0).module);
}

// The published counts: issue texts of the field, kuangliu/pytorch-cifar for the CIFAR forms,
// torchvision for ImageNet's.
TEST(Models, HaveThePublishedNumberOfParameters) {
  EXPECT_EQ(parameters_of("simple-cnn"), 60'362);
  EXPECT_EQ(parameters_of("resnet18"), 11'173'962);
  EXPECT_EQ(parameters_of("resnet50"), 23'520'842);
  EXPECT_EQ(parameters_of("vgg19"), 20'040'522);
  EXPECT_EQ(parameters_of("resnet50-imagenet"), 25'557'032);
  EXPECT_EQ(parameters_of("mlp"), 3 * (4096 * 4096 + 4096));
  EXPECT_EQ(parameters_of("mlp", {.in = 8, .out = 3, .settings = {{"depth", "1"}}}), 8 * 3 + 3);
  EXPECT_EQ(parameters_of("lstm", {.vocabulary = 100'683}), 10'435'149);
}

TEST(Models, CountASharedModuleOnce) {
  const torch::nn::Linear shared(4, 4);
  EXPECT_EQ(parameter_count(*torch::nn::Sequential(shared, torch::nn::Tanh(), shared)), 20);
}

TEST(Models, GiveOneRowOfLogitsAPicture) {
  const at::NoGradGuard no_grad;
  for (const char* name : {"simple-cnn", "resnet18", "resnet50", "vgg19"}) {
    const train::Network model = make_model(name, {.classes = 7}, 0);
    EXPECT_EQ(model.forward({.input = at::randn({2, 3, 32, 32})}).sizes(),
              (std::vector<int64_t>{2, 7}))
        << name;
  }
  const train::Network grey = make_model("simple-cnn", {.channels = 1, .size = 28}, 0);
  EXPECT_EQ(grey.forward({.input = at::randn({2, 1, 28, 28})}).sizes(),
            (std::vector<int64_t>{2, 10}));
  const train::Network large = make_model("resnet50-imagenet", {}, 0);
  EXPECT_EQ(large.forward({.input = at::randn({1, 3, 64, 64})}).sizes(),
            (std::vector<int64_t>{1, 1000}));
}

// A config has one value a name, whichever model it is for.
TEST(Models, WithASettingOfOneNameShareItsKindAndDefault) {
  std::map<std::string, const ModelSetting*> first;
  for (const ModelInfo& model : models())
    for (const ModelSetting& own : model.settings) {
      const auto [found, is_new] = first.try_emplace(own.setting.name, &own);
      const ModelSetting& other = *found->second;
      EXPECT_EQ(own.setting.get({}), other.setting.get({})) << model.name << own.setting.name;
      EXPECT_EQ(own.setting.type, other.setting.type) << model.name << own.setting.name;
      EXPECT_EQ(own.setting.accepted, other.setting.accepted) << model.name << own.setting.name;
    }
  EXPECT_GT(first.size(), 10U);
}

TEST(Models, AreMadeFromTheSeedAlone) {
  const auto weights = [](uint64_t seed) {
    return make_model("simple-cnn", {}, seed).module->parameters()[0];
  };
  EXPECT_TRUE(at::equal(weights(3), weights(3)));
  EXPECT_FALSE(at::equal(weights(3), weights(4)));
}

TEST(Models, RefuseWhatMakesNoSense) {
  EXPECT_THROW(make_model("resnet8", {}, 0), UsageError);
  EXPECT_THROW(make_model("mlp", {.settings = {{"depth", "0"}}}, 0), UsageError);
  EXPECT_THROW(make_model("simple-cnn", {.size = 30}, 0), UsageError);
  EXPECT_THROW(make_model("resnet18", {.classes = 0}, 0), UsageError);
  EXPECT_THROW(make_model("vgg19", {.channels = 0}, 0), UsageError);
  EXPECT_THROW(make_model("lstm", {}, 0), UsageError);
  for (const int64_t wrong : {0, -3}) {
    for (const char* name :
         {"fashion-cnn", "simple-cnn", "resnet18", "resnet50-imagenet", "vgg19"}) {
      EXPECT_THROW(make_model(name, {.channels = wrong}, 0), UsageError) << name << wrong;
      EXPECT_THROW(make_model(name, {.classes = wrong}, 0), UsageError) << name << wrong;
    }
    EXPECT_THROW(make_model("lstm", {.classes = wrong, .vocabulary = 9}, 0), UsageError) << wrong;
  }
  EXPECT_THROW(make_model("lstm", {.vocabulary = 9, .settings = {{"pool", "first"}}}, 0),
               UsageError);
}

TEST(ResNet, SaysWhatBatchNormCannotTrainOn) {
  const ResNetOptions small{.depths = {1, 1, 1, 1}};
  ResNetOptions imagenet = small;
  imagenet.stem = ResNetStem::imagenet;
  for (auto [options, least] : {std::pair(small, 9), {imagenet, 33}}) {
    ResNet model(options);
    EXPECT_THROW(model->forward(at::randn({1, 3, least - 1, least - 1})), UsageError) << least;
    EXPECT_EQ(model->forward(at::randn({1, 3, least, 1})).size(0), 1) << least;
    EXPECT_EQ(model->forward(at::randn({2, 3, 1, 1})).size(0), 2) << least;
    model->eval();
    EXPECT_EQ(model->forward(at::randn({1, 3, 1, 1})).size(0), 1) << least;
  }
}

TEST(ResNet, TrainsEveryParameter) {
  ResNet model(ResNetOptions{.block = ResNetBlock::bottleneck, .depths = {1, 1, 1, 1}});
  model->forward(at::randn({2, 3, 32, 32})).square().sum().backward();
  for (const auto& parameter : model->named_parameters())
    EXPECT_TRUE(parameter.value().grad().defined()) << parameter.key();
}

}  // namespace
}  // namespace demi::models
