#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cmath>
#include <memory>
#include <optional>
#include <string>

#include "demi/autocast/apply.h"
#include "demi/autocast/autocast.h"
#include "demi/autocast/parts.h"
#include "demi/core/error.h"
#include "demi/quantization/layers.h"

namespace demi {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

struct TwoLayers : torch::nn::Cloneable<TwoLayers> {
  torch::nn::Embedding embedding{nullptr};
  torch::nn::Linear first{nullptr}, last{nullptr};
  TwoLayers() { TwoLayers::reset(); }
  void reset() override {
    embedding = register_module("embedding", torch::nn::Embedding(10, 32));
    first = register_module("first", torch::nn::Linear(32, 64));
    last = register_module("last", torch::nn::Linear(64, 8));
  }
  at::Tensor forward(const at::Tensor& tokens) {
    return last->forward(first->forward(embedding->forward(tokens)).relu());
  }
};

/// What the recipe makes of one call, as the room below computes it.
at::Tensor expected_of(const at::Tensor& x, const torch::nn::Linear& layer,
                       std::string_view recipe) {
  const auto how = std::make_shared<quantization::QuantizedWeight>(
      quantization::parse_recipe(recipe), 0, std::numeric_limits<std::int64_t>::max(),
      std::make_shared<quantization::RecipeRun>());
  return quantization::linear(x, layer->weight, layer->bias, how, torch::kBFloat16);
}

template <class Call>
std::string usage_of(const Call& call) {
  try {
    call();
  } catch (const UsageError& error) {
    return error.what();
  }
  return "no UsageError";
}

class Recipes : public ::testing::Test {
 protected:
  void SetUp() override { torch::manual_seed(3); }
  void TearDown() override { forget_dead_parts(); }
};

// torch::nn::Linear is addmm of two dimensions and matmul of three; Python's is linear.
TEST_F(Recipes, EachFormInWhichALinearLayerIsCalledMultipliesByTheRecipe) {
  torch::nn::Linear layer(32, 16);
  demi::apply(OpPolicy().set_part("*", "mxfp8"), *layer);
  const at::Tensor x = torch::randn({6, 32}), batch = torch::randn({2, 3, 32});
  const at::Tensor of_rows = expected_of(x, layer, "mxfp8"),
                   plain = torch::linear(x, layer->weight, layer->bias);
  const Autocast region(torch::kCPU);
  EXPECT_TRUE(layer->forward(x).equal(of_rows));
  EXPECT_FALSE(of_rows.equal(plain.to(torch::kBFloat16)));
  EXPECT_TRUE(torch::linear(x, layer->weight, layer->bias).equal(of_rows));
  EXPECT_TRUE(torch::addmm(layer->bias, x, layer->weight.t()).equal(of_rows));
  const at::Tensor without = torch::linear(x, layer->weight);
  EXPECT_TRUE(torch::mm(x, layer->weight.t()).equal(without));
  EXPECT_TRUE(torch::matmul(x, layer->weight.t()).equal(without));
  EXPECT_TRUE(torch::matmul(x[0], layer->weight.t()).equal(torch::linear(x[0], layer->weight)));
  // A weight that a graph holds as (in, out).
  const at::Tensor other_way = torch::matmul(batch.view({6, 32}), layer->weight.t().contiguous());
  EXPECT_LT((torch::linear(batch, layer->weight).view({6, 16}) - other_way).norm().item<float>(),
            0.1 * other_way.norm().item<float>());
  unapply(*layer);
  EXPECT_TRUE(layer->forward(x).equal(torch::linear(x.to(torch::kBFloat16),
                                                    layer->weight.to(torch::kBFloat16),
                                                    layer->bias.to(torch::kBFloat16))));
}

TEST_F(Recipes, ALayerWithoutABias) {
  torch::nn::Linear layer(torch::nn::LinearOptions(32, 16).bias(false));
  demi::apply(OpPolicy().set_part("*", "nvfp4"), *layer);
  const at::Tensor x = torch::randn({6, 32});
  const Autocast region(torch::kCPU);
  EXPECT_TRUE(layer->forward(x).equal(torch::linear(x, layer->weight)));
  EXPECT_TRUE(torch::linear(x, layer->weight, layer->bias).equal(torch::linear(x, layer->weight)));
}

TEST_F(Recipes, GradientsReachTheParametersAndOutsideOfARegionNothingIsQuantized) {
  torch::nn::Linear layer(32, 16);
  demi::apply(OpPolicy().set_part("*", "fp8:rowwise"), *layer);
  const at::Tensor x = torch::randn({6, 32});
  EXPECT_TRUE(layer->forward(x).equal(torch::addmm(layer->bias, x, layer->weight.t())));
  at::Tensor y;
  {
    const Autocast region(torch::kCPU);
    y = layer->forward(x);
  }
  y.sum().backward();
  EXPECT_EQ(layer->weight.grad().sizes(), layer->weight.sizes());
  EXPECT_LT((layer->weight.grad() - x.sum(0).expand({16, 32})).norm().item<float>(),
            0.1 * layer->weight.grad().norm().item<float>());
  EXPECT_TRUE(layer->bias.grad().equal(torch::full({16}, 6.F)));
}

TEST_F(Recipes, APolicyForANetworkLeavesEmbeddingsAndTheLastLayer) {
  TwoLayers network;
  const OpPolicy policy = OpPolicy::of_recipe("mxfp8", network);
  EXPECT_EQ(policy.to_string(), "part * mxfp8\npart last lower_precision\n");
  demi::apply(policy, network);
  const auto layers = quantized_layers(network);
  ASSERT_EQ(layers.size(), 1U);
  EXPECT_EQ(layers[0].weight, "first.weight");
  EXPECT_EQ(layers[0].recipe, "mxfp8");
  EXPECT_FALSE(layers[0].until);
  EXPECT_EQ(quantized_parameters, 1);
}

TEST_F(Recipes, ASizeThatNoBlockDividesIsSaid) {
  TwoLayers network;  // (64, 32) and (8, 64)
  const auto are_padded = [&](std::string_view recipe) {
    demi::apply(OpPolicy().set_part("*", recipe), network);
    std::vector<bool> padded;
    for (const auto& layer : quantized_layers(network)) padded.push_back(layer.is_padded);
    return padded;
  };
  EXPECT_THAT(are_padded("mxfp8"), ElementsAre(false, true));
  EXPECT_THAT(are_padded("nvfp4"), ElementsAre(false, true));
  EXPECT_THAT(are_padded("fp8:blocks"), ElementsAre(true, true));
  EXPECT_THAT(are_padded("fp8:rowwise"), ElementsAre(false, false));
}

// A matrix of another op, such as a table of positions, has the mark too.
TEST_F(Recipes, OnlyWeightsThatWereMultipliedCountAsUsed) {
  TwoLayers network;
  demi::apply(OpPolicy().set_part("*", "mxfp8"), network);
  for (const auto& layer : quantized_layers(network)) EXPECT_FALSE(layer.was_used);
  const Autocast region(torch::kCPU);
  network.first->forward(torch::randn({6, 32}));
  for (const auto& layer : quantized_layers(network))
    EXPECT_EQ(layer.was_used, layer.weight == "first.weight");
}

TEST_F(Recipes, TheLastRuleForAPartCounts) {
  TwoLayers network;
  demi::apply(OpPolicy().set_part("*", "mxfp8").set_part("first", "fp8").set_part("last", "fp32"),
              network);
  const auto layers = quantized_layers(network);
  ASSERT_EQ(layers.size(), 1U);
  EXPECT_EQ(layers[0].recipe, "fp8");
  EXPECT_EQ(dtype_of_part(network.last->weight), torch::kFloat);
  demi::apply(OpPolicy().set_part("first", "lower_precision"), network);
  EXPECT_TRUE(quantized_layers(network).empty());
}

TEST_F(Recipes, ARecipeWithinAPartThatIsFp32Multiplies) {
  TwoLayers network;
  demi::apply(OpPolicy().set_part("*", "fp32").set_part("first", "mxfp8"), network);
  const at::Tensor x = torch::randn({6, 32});
  const at::Tensor by_recipe = expected_of(x, network.first, "mxfp8");
  const Autocast region(torch::kCPU);
  EXPECT_TRUE(network.first->forward(x).equal(by_recipe));
  EXPECT_EQ(network.last->forward(torch::randn({6, 64})).scalar_type(), torch::kFloat);
}

TEST_F(Recipes, WithBeta0NothingOfTheAddendCounts) {
  torch::nn::Linear layer(32, 16);
  demi::apply(OpPolicy().set_part("*", "mxfp8"), *layer);
  const at::Tensor x = torch::randn({6, 32}), nan = torch::full({6, 16}, NAN);
  const Autocast region(torch::kCPU);
  EXPECT_TRUE(torch::addmm(nan, x, layer->weight.t(), 0, 1).equal(torch::mm(x, layer->weight.t())));
}

TEST_F(Recipes, ACopyKeepsItsRecipeAndUntilEndsIt) {
  TwoLayers network;
  demi::apply(OpPolicy().set_part("first", "mxfp8", 5), network);
  const auto copy = std::dynamic_pointer_cast<TwoLayers>(network.clone());
  const at::Tensor x = torch::randn({6, 32});
  const at::Tensor by_recipe = expected_of(x, network.first, "mxfp8");
  const Autocast region(torch::kCPU);
  EXPECT_TRUE(copy->first->forward(x).equal(by_recipe));
  EXPECT_EQ(quantized_layers(*copy).at(0).until, 5);
  set_step(network, 4);
  EXPECT_TRUE(network.first->forward(x).equal(by_recipe));
  set_step(network, 5);
  EXPECT_FALSE(network.first->forward(x).equal(by_recipe));
  EXPECT_FALSE(recipe_of_part(network.first->weight));
  set_step(network, 4);
  EXPECT_TRUE(network.first->forward(x).equal(by_recipe));
}

TEST_F(Recipes, AnOpThatAPolicyRunsInFp32IsNotQuantized) {
  torch::nn::Linear layer(32, 16);
  demi::apply(OpPolicy().set_part("*", "mxfp8"), *layer);
  const at::Tensor x = torch::randn({6, 32});
  const Autocast region(
      torch::kCPU,
      {.policy = OpPolicy().set("addmm", OpCategory::fp32).set("linear", OpCategory::fp32)});
  EXPECT_TRUE(layer->forward(x).equal(torch::linear(x, layer->weight, layer->bias)));
  EXPECT_EQ(layer->forward(x).scalar_type(), torch::kFloat);
}

TEST_F(Recipes, ConvolutionsInFp8AndInTheRegionsDtypeElsewhere) {
  torch::nn::Sequential network(
      torch::nn::Conv2d(torch::nn::Conv2dOptions(4, 8, 3).padding(1)),
      torch::nn::Conv2d(torch::nn::Conv2dOptions(8, 8, 3).padding(torch::kSame)),
      torch::nn::Flatten(), torch::nn::Linear(8 * 25, 8), torch::nn::Linear(8, 4));
  const at::Tensor x = torch::randn({2, 4, 5, 5});
  const auto out = [&] {
    const Autocast region(torch::kCPU);
    return network[0]->as<torch::nn::Conv2d>()->forward(x);
  };
  const at::Tensor plain = out();
  demi::apply(OpPolicy().set_part("*", "mxfp8"), *network);
  EXPECT_EQ(quantized_layers(*network).size(), 2U) << "the linear layers";
  EXPECT_TRUE(out().equal(plain));
  demi::apply(OpPolicy().set_part("*", "fp8"), *network);
  EXPECT_EQ(quantized_layers(*network).size(), 4U);
  EXPECT_FALSE(out().equal(plain));
  EXPECT_LT((out() - plain).norm().item<float>(), 0.1 * plain.norm().item<float>());
  at::Tensor y;
  {
    const Autocast region(torch::kCPU);
    y = network->forward(x);
    const at::Tensor one = network[1]->as<torch::nn::Conv2d>()->forward(torch::randn({8, 5, 5}));
    EXPECT_EQ(one.sizes(), (std::vector<std::int64_t>{8, 5, 5}));
  }
  y.to(torch::kFloat).sum().backward();
  for (const at::Tensor& parameter : network->parameters()) EXPECT_TRUE(parameter.grad().defined());
  const Autocast region(torch::kCPU);
  const at::Tensor weight = network[1]->as<torch::nn::Conv2d>()->weight;
  EXPECT_THROW(torch::conv2d(torch::randn({2, 8, 5, 5}), weight, {}, 2, "same"), c10::Error);
}

TEST_F(Recipes, RefuseWhatHasNoRecipe) {
  torch::nn::LSTM lstm(8, 8);
  EXPECT_THAT(usage_of([&] { demi::apply(OpPolicy().set_part("*", "mxfp8"), *lstm); }),
              HasSubstr("no layer that the recipe is for"));
  torch::nn::Linear one(8, 8);
  EXPECT_THAT(usage_of([&] { OpPolicy::of_recipe("nvfp5", *one); }), HasSubstr("no recipe"));
  EXPECT_THAT(usage_of([&] { OpPolicy::of_recipe("mxfp8", *one); }), HasSubstr("besides the last"));
  EXPECT_THAT(usage_of([&] { OpPolicy().set_part("a", "mxfp"); }),
              HasSubstr("did you mean mxfp8?"));
  EXPECT_THAT(usage_of([&] { OpPolicy().set_part("a", "fp32", 7); }), HasSubstr("until"));
  EXPECT_THAT(usage_of([&] { OpPolicy().set_part("a", "fp8", 0); }), HasSubstr("1 or more"));
  EXPECT_THAT(usage_of([&] { demi::apply(OpPolicy().set_part("b", "fp8"), *one); }),
              HasSubstr("no part of that name"));
}

TEST_F(Recipes, APolicyFileHoldsThemWithTheirLastStep) {
  const std::string readable =
      "part * mxfp8\npart the head lower_precision\npart a fp8 until 8200\n";
  const OpPolicy policy = OpPolicy::from_text(readable);
  EXPECT_EQ(policy.to_string(), readable);
  EXPECT_EQ(policy.parts().at(1).part, "the head");
  EXPECT_EQ(policy.parts().at(2).until, 8200);
  EXPECT_THAT(usage_of([&] { OpPolicy::from_text("part a fp8 until soon"); }),
              HasSubstr("as in: part encoder.norm fp32"));
}

}  // namespace
}  // namespace demi
