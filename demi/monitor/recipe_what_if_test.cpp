#include "demi/monitor/recipe_what_if.h"

#include <gmock/gmock.h>
#include <torch/torch.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "demi/autocast/apply.h"
#include "demi/core/error.h"
#include "demi/optim/sgd.h"
#include "demi/train/testing.h"
#include "demi/train/trainer.h"
#include "demi/weights/weights.h"

namespace demi::monitor::recipe_what_if {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::ElementsAreArray;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using train::testing::Rows;

constexpr int64_t kIn = 32, kRows = 16, kBatch = 4;

struct TwoImpl : torch::nn::Module {
  explicit TwoImpl(bool is_named_twice = false, bool has_own = false)
      : first(register_module("first", torch::nn::Linear(kIn, kIn))) {
    if (is_named_twice) register_module("again", first);
    second = register_module("second", torch::nn::Linear(kIn, kIn));
    norm = register_module("norm", torch::nn::BatchNorm1d(kIn));
    head = register_module("head", torch::nn::Linear(kIn, 1));
    if (has_own) own = register_parameter("own", at::eye(kIn));
  }
  torch::nn::Linear first;
  torch::nn::Linear second{nullptr};
  torch::nn::BatchNorm1d norm{nullptr};
  torch::nn::Linear head{nullptr};
  at::Tensor own;  // a weight of the network itself
  double dropout = 0;
  std::function<at::Tensor(TwoImpl&, const at::Tensor&)> body;
  at::Tensor forward(const at::Tensor& x) {
    if (body) return body(*this, x);
    const at::Tensor h = norm->forward(first->forward(x)).tanh();
    return head->forward(at::dropout(second->forward(h).tanh(), dropout, is_training()));
  }
};
TORCH_MODULE(Two);

Two model_of(double dropout = 0) {
  torch::manual_seed(5);
  Two model;
  model->dropout = dropout;
  return model;
}

Rows rows() {
  torch::manual_seed(6);
  const at::Tensor x = at::randn({kRows, kIn});
  return {x, x.sum(1, true), kBatch};
}

train::TrainerOptions options_of(Two& model, const char* precision = "fp32", double rate = 1e-2) {
  train::TrainerOptions options;
  options.precision = parse_precision(precision);
  options.loss = train::Loss::mse;
  std::vector<at::Tensor> parameters;  // each once
  for (const at::Tensor& p : model->parameters())
    if (std::ranges::none_of(parameters, [&](const at::Tensor& q) { return q.is_same(p); }))
      parameters.push_back(p);
  options.optimizers = {std::make_shared<optim::SGD>(parameters, optim::SGDOptions(rate))};
  options.epochs = 3;  // of four steps
  return options;
}

RecipeWhatIfResult ask(Two& model, RecipeWhatIfOptions with, const Rows& data = rows(),
                       int64_t accumulate = 1, double rate = 1e-2) {
  train::TrainerOptions options = options_of(model, "fp32", rate);
  options.accumulate = accumulate;
  train::Trainer trainer(train::network(model), options);
  const auto what_if = std::make_shared<RecipeWhatIf>(std::move(with));
  trainer.add(what_if);
  trainer.fit(data);
  return what_if->result();
}

const LayerInRecipe& layer_of(const RecipeWhatIfResult& result, const std::string& name) {
  for (const LayerInRecipe& layer : result.layers)
    if (layer.layer == name) return layer;
  throw std::runtime_error("no layer " + name);
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

// Dropout draws numbers and BatchNorm keeps statistics. A threshold that every layer exceeds makes
// it try policies, too.
TEST(RecipeWhatIf, TheRunContinuesWithTheSameBits) {
  Two plain = model_of(0.5), asked = model_of(0.5);
  torch::manual_seed(7);
  train::Trainer(train::network(plain), options_of(plain)).fit(rows());
  weights::drop();
  const auto before = weights::stats().copies;
  torch::manual_seed(7);
  const auto result = ask(asked, {.recipe = "mxfp8", .every = 1, .threshold = 1e-9});
  EXPECT_EQ(result.batches, 12);
  for (const auto& item : plain->named_parameters())
    EXPECT_TRUE(item.value().equal(asked->named_parameters()[item.key()])) << item.key();
  for (const auto& item : plain->named_buffers())
    EXPECT_TRUE(item.value().equal(asked->named_buffers()[item.key()])) << item.key();
  EXPECT_THAT(quantized_layers(*asked), IsEmpty());
  EXPECT_EQ(weights::stats().copies, before);
}

TEST(RecipeWhatIf, NoCopyThatEachStepWouldWriteIsLeft) {
  Two model = model_of();
  train::Trainer trainer(train::network(model), options_of(model));
  trainer.add(std::make_shared<RecipeWhatIf>(RecipeWhatIfOptions{.recipe = "mxfp8", .every = 1}));
  const auto before = weights::stats().copies;
  trainer.fit(rows());
  EXPECT_EQ(weights::stats().copies, before);
}

TEST(RecipeWhatIf, APartThatEndsWithAStepIsTriedAsTheStepHasIt) {
  for (const int64_t until : {5, 7}) {
    Two model = model_of();
    RecipeWhatIfOptions options{.recipe = "mxfp8", .every = 6};
    options.policy.set_part("first", "mxfp8", until);
    train::TrainerOptions run = options_of(model);
    run.max_steps = 6;
    train::Trainer trainer(train::network(model), run);
    const auto what_if = std::make_shared<RecipeWhatIf>(options);
    trainer.add(what_if);
    trainer.fit(rows());
    EXPECT_EQ(layer_of(what_if->result(), "first").quantized, until == 7) << until;
  }
}

TEST(RecipeWhatIf, LooksAtAStepInSoMany) {
  Two model = model_of();
  const auto result = ask(model, {.recipe = "mxfp8", .every = 5});
  EXPECT_EQ(result.batches, 2);
  EXPECT_EQ(result.first_step, 5);
  EXPECT_EQ(result.last_step, 10);
  EXPECT_GT(result.seconds, 0);
  EXPECT_EQ(layer_of(result, "first").products[0].operands.elements, 2 * (kBatch * kIn + kIn * kIn))
      << "those of each batch once";
  RecipeWhatIf one({.every = 5});
  EXPECT_TRUE(one.needs_step(1)) << "where it learns of the network";
}

TEST(RecipeWhatIf, RefusesWhatItCannotAnswer) {
  EXPECT_THAT(usage_of([] { RecipeWhatIf({.recipe = "mxfp9"}); }), HasSubstr("mxfp8"));
  EXPECT_THAT(usage_of([] { RecipeWhatIf({.every = 0}); }), HasSubstr("1 or more"));
  EXPECT_THAT(usage_of([] { RecipeWhatIf({.threshold = 0.0}); }), HasSubstr("not positive"));
  Two model = model_of();
  train::Trainer trainer(train::network(model), options_of(model, "bf16"));
  trainer.add(std::make_shared<RecipeWhatIf>());
  EXPECT_THAT(usage_of([&] { trainer.fit(rows()); }), HasSubstr("the run is not FP32"));
}

TEST(RecipeWhatIf, ThresholdsAreThoseOfTheFormats) {
  Two model = model_of();
  EXPECT_EQ(ask(model, {.recipe = "fp8", .every = 12}).threshold, 0.1);
  EXPECT_EQ(ask(model, {.recipe = "fp8", .every = 12, .threshold = 0.2}).threshold, 0.2);
  if (quantization::find_recipe("nvfp4")) {
    EXPECT_EQ(ask(model, {.recipe = "nvfp4", .every = 12}).threshold, 0.3);
  }
}

// One feature of 2^20 among ones sets the scale 448 / 2^20: the ones become 448 / 2^20 = 2^-11.2,
// below half of the least number 2^-9, and the weights of 0.5 are kept. Of 4 x 32 inputs and 32 x
// 32 weights that the output's product reads, 4 x 31 become 0.
TEST(RecipeWhatIf, CountsWhatBecomes0AndTheProductsError) {
  Two model = model_of();
  model->body = [](TwoImpl& m, const at::Tensor& x) {
    return m.head->forward(m.second->forward(m.first->forward(x)).tanh());
  };
  at::Tensor x = at::ones({kRows, kIn});
  x.select(1, 0).fill_(0x1p20);
  {
    const torch::NoGradGuard no_grad;
    model->first->weight.fill_(0.5);
    model->first->weight.select(1, 0).zero_();
    model->first->bias.zero_();
  }
  const auto result = ask(model, {.recipe = "fp8", .every = 12}, {x, at::ones({kRows, 1}), kBatch},
                          /*accumulate=*/1, /*rate=*/1e-30);
  const ProductLoss& output = layer_of(result, "first").products[0];
  EXPECT_EQ(output.operands.elements, kBatch * kIn + kIn * kIn);
  EXPECT_EQ(output.operands.underflowed, kBatch * (kIn - 1) + kIn)
      << "and the column of weights, of whose zeros the steps before made some 1e-25";
  EXPECT_EQ(output.operands.saturated, 0);
  // Of the inputs' energy at each place that is summed over 31 of 32 parts, of the weights' 1
  // of 32.
  EXPECT_NEAR(output.operands.lost, 0.5, 1e-6);
  EXPECT_NEAR(output.operands.of_underflowed, 0.5, 1e-6);
  EXPECT_EQ(output.error, 1) << "the ones are all that the weights read";
  EXPECT_EQ(output.cosine, 0);
  EXPECT_EQ(layer_of(result, "second").cause, HarmCause::underflow);
  EXPECT_EQ(layer_of(result, "second").from, "first");
  EXPECT_EQ(layer_of(result, "second").product, quantization::Product::output);
}

TEST(RecipeWhatIf, TheLastLayerIsLeftInBf16AndLookedAt) {
  Two model = model_of();
  const auto result = ask(model, {.recipe = "fp8:rowwise", .every = 6});
  ASSERT_EQ(result.layers.size(), 3u);
  EXPECT_TRUE(layer_of(result, "first").quantized);
  EXPECT_FALSE(layer_of(result, "head").quantized);
  EXPECT_GT(layer_of(result, "head").error, 1e-3) << "its input is off";
  EXPECT_EQ(layer_of(result, "head").products[0].error, 0);
}

TEST(RecipeWhatIf, PartsThatAreInFp32StayThere) {
  Two model = model_of();
  RecipeWhatIfOptions options{.recipe = "mxfp8", .every = 6, .threshold = 1e-9};
  options.policy.keep_part_in_fp32("second").set("tanh", OpCategory::fp32);
  const auto result = ask(model, options);
  EXPECT_FALSE(layer_of(result, "second").quantized);
  EXPECT_TRUE(layer_of(result, "first").quantized);
  EXPECT_THAT(RecipeWhatIf({.recipe = "mxfp8"}).result().policy.to_string(), IsEmpty());
  Two other = model_of();
  options.threshold = 1e9;  // which no layer exceeds
  EXPECT_THAT(ask(other, options).policy.to_string(),
              AllOf(HasSubstr("tanh fp32"), HasSubstr("part second fp32")));
}

// Errors that vary: their mean is below the threshold, and so few batches do not show that it is.
TEST(RecipeWhatIf, WhatIsNotSeenToBeBelowTheThresholdIsHarmed) {
  Two model = model_of(), again = model_of();
  const auto first = ask(model, {.recipe = "mxfp8", .every = 2});
  const LayerInRecipe& seen = layer_of(first, "second");
  ASSERT_GT(seen.greatest_error, seen.error * 1.001);
  const auto result = ask(again, {.recipe = "mxfp8", .every = 2, .threshold = seen.error * 1.0001});
  EXPECT_EQ(layer_of(result, "second").error, seen.error);
  EXPECT_TRUE(layer_of(result, "second").harmed);
  EXPECT_FALSE(result.left_out.empty() && !result.none_fits);
}

// The network leaves its second layer out where its first one gives bf16.
TEST(RecipeWhatIf, AGradientThatIsAbsentIsOffByAllOfIt) {
  Two model = model_of();
  model->body = [](TwoImpl& m, const at::Tensor& x) {
    const at::Tensor h = m.first->forward(x);
    if (h.scalar_type() == at::kBFloat16) return m.head->forward(h);
    return m.head->forward(h + m.second->forward(h).tanh());
  };
  const auto result = ask(model, {.recipe = "mxfp8", .every = 12});
  EXPECT_EQ(layer_of(result, "second").error, 1);
}

// The errors are of the batch itself, not of the sum that the step has.
TEST(RecipeWhatIf, GradientsThatAreAccumulatedChangeNothing) {
  Two alone = model_of(), summed = model_of();
  const auto one = ask(alone, {.recipe = "mxfp8", .every = 1}),
             of_two = ask(summed, {.recipe = "mxfp8", .every = 1}, rows(), 2);
  EXPECT_EQ(of_two.batches, 6);
  EXPECT_NEAR(layer_of(one, "second").error, layer_of(of_two, "second").error, 0.02);
  EXPECT_LT(layer_of(of_two, "second").error, 0.1);
}

// Masks of bf16 may be others than those of FP32.
TEST(RecipeWhatIf, ANetworkWithDropoutIsComparedInOneDtype) {
  Two model = model_of(0.5);
  const auto result = ask(model, {.recipe = "mxfp8", .every = 3});
  EXPECT_TRUE(result.against_region);
  EXPECT_LT(layer_of(result, "second").error, 0.2);
  Two without = model_of();
  EXPECT_FALSE(ask(without, {.recipe = "mxfp8", .every = 3}).against_region);
}

TEST(RecipeWhatIf, ARunThatIsNotFiniteItselfIsReported) {
  Two model = model_of();
  at::Tensor x = at::ones({kRows, kIn}), y = at::ones({kRows, 1});
  y[9] = INFINITY;  // in the third batch
  const auto result = ask(model, {.recipe = "mxfp8", .every = 1}, {x, y, kBatch});
  ASSERT_TRUE(result.diverged);
  EXPECT_EQ(*result.diverged, 3);
  EXPECT_EQ(result.batches, 2);
}

// A gradient of a gradient has none in a recipe.
TEST(RecipeWhatIf, WhatDoesNotRunInTheRecipeIsReported) {
  Two model = model_of();
  model->body = [](TwoImpl& m, const at::Tensor& x) {
    const at::Tensor h = m.first->forward(x.detach().requires_grad_());
    const at::Tensor penalty = torch::autograd::grad({h.square().sum()}, {m.first->weight}, {},
                                                     /*retain_graph=*/true, /*create_graph=*/true)
                                   .front();
    return m.head->forward(m.second->forward(h)) + penalty.square().mean();
  };
  const auto result = ask(model, {.recipe = "mxfp8", .every = 3});
  EXPECT_THAT(result.refused, HasSubstr("no derivative"));
  EXPECT_EQ(result.batches, 0);
  EXPECT_EQ(result.harmed(), 0);
}

// Two layers of the same weights are off alike: their errors add up, and not their squares, by
// which the first guess is made.
TEST(RecipeWhatIf, APolicyThatATrialRefutesLeavesOutMore) {
  const auto twins = [] {
    Two model = model_of();
    model->body = [](TwoImpl& m, const at::Tensor& x) {
      return m.head->forward(m.first->forward(x) + m.second->forward(x));
    };
    const torch::NoGradGuard no_grad;
    model->second->weight.copy_(model->first->weight);
    model->second->bias.copy_(model->first->bias);
    return model;
  };
  Two model = twins(), again = twins();
  const char* recipe = "mxfp8:wgrad-bf16";
  const double error = layer_of(ask(model, {.recipe = recipe, .every = 2}), "head").error;
  const auto result = ask(again, {.recipe = recipe, .every = 2, .threshold = 0.85 * error});
  EXPECT_TRUE(layer_of(result, "head").harmed);
  EXPECT_THAT(result.left_out, ElementsAre("first"));
  EXPECT_LT(layer_of(result, "head").policy_error, result.threshold);
  EXPECT_GE(result.policy_batches, 2);
}

// Weights that cancel each other: the first layer's output is off, and it alone has to leave.
TEST(RecipeWhatIf, ThePolicyLeavesOutTheLayerAtFault) {
  Two model = model_of();
  model->body = [](TwoImpl& m, const at::Tensor& x) {
    return m.head->forward(m.second->forward(m.first->forward(x) * 4).tanh());
  };
  at::Tensor x;
  {
    const torch::NoGradGuard no_grad;
    torch::manual_seed(8);
    const at::Tensor half = at::randn({kRows, kIn / 2});
    x = at::cat({half, half + 0.2 * at::randn({kRows, kIn / 2})}, 1);
    model->first->weight.slice(1, 0, kIn / 2).copy_(-model->first->weight.slice(1, kIn / 2));
    model->first->bias.zero_();
  }
  const auto result =
      ask(model, {.recipe = "mxfp8", .every = 2}, {x, at::ones({kRows, 1}), kBatch});
  EXPECT_GT(result.harmed(), 0);
  EXPECT_THAT(result.left_out, ElementsAre("first"));
  EXPECT_FALSE(result.none_fits);
  EXPECT_GE(result.policy_batches, 1);
  EXPECT_EQ(layer_of(result, "second").from, "first");
  EXPECT_EQ(cause_text(layer_of(result, "second")), "rounding of its output in first");
  EXPECT_LT(layer_of(result, "second").policy_error, result.threshold);
  EXPECT_THAT(result.policy_text(), HasSubstr("# part first: in mxfp8 its weights' gradient is"));
  const OpPolicy read = OpPolicy::from_text(result.policy_text());
  EXPECT_EQ(read.to_string(),
            "part * mxfp8\npart head lower_precision\npart first lower_precision\n");
}

TEST(RecipeWhatIf, AModuleOfTwoNamesIsOneLayerAndShiftsNoOther) {
  Two plain = model_of();
  torch::manual_seed(5);
  Two shared(/*is_named_twice=*/true);
  const auto expected = ask(plain, {.recipe = "mxfp8", .every = 2}),
             seen = ask(shared, {.recipe = "mxfp8", .every = 2});
  ASSERT_EQ(seen.layers.size(), expected.layers.size());
  for (std::size_t i = 0; i < seen.layers.size(); ++i) {
    EXPECT_EQ(seen.layers[i].layer, expected.layers[i].layer);
    EXPECT_EQ(seen.layers[i].error, expected.layers[i].error) << seen.layers[i].layer;
  }
}

// Recipes stay with a model after a run of them.
TEST(RecipeWhatIf, AModelThatWasTrainedInARecipeIsComparedWithBf16) {
  Two plain = model_of(), marked = model_of();
  demi::apply(OpPolicy::of_recipe("mxfp8", *marked), *marked);
  const RecipeWhatIfOptions options{.recipe = "mxfp8", .every = 2, .threshold = 0.012};
  EXPECT_THAT(ask(marked, options).left_out, ElementsAreArray(ask(plain, options).left_out));
  EXPECT_EQ(quantized_layers(*marked).size(), 2U) << "as before";
}

// Of the network itself: its rule names all parts, and those within it get theirs behind it.
TEST(RecipeWhatIf, AWeightOfTheNetworkItselfIsLeftOutAlone) {
  torch::manual_seed(5);
  Two model(/*is_named_twice=*/false, /*has_own=*/true);
  model->body = [](TwoImpl& m, const at::Tensor& x) {
    return m.head->forward(m.second->forward(x.matmul(m.own.t()) * 4).tanh());
  };
  at::Tensor x;
  {
    const torch::NoGradGuard no_grad;
    torch::manual_seed(8);
    const at::Tensor half = at::randn({kRows, kIn / 2});
    x = at::cat({half, half + 0.2 * at::randn({kRows, kIn / 2})}, 1);
    model->own.copy_(model->first->weight);
    model->own.slice(1, 0, kIn / 2).copy_(-model->own.slice(1, kIn / 2));
  }
  const auto result =
      ask(model, {.recipe = "mxfp8", .every = 2}, {x, at::ones({kRows, 1}), kBatch});
  EXPECT_THAT(result.left_out, ElementsAre("model"));
  EXPECT_FALSE(result.none_fits);
  demi::apply(result.policy, *model);
  const auto quantized = quantized_layers(*model);
  ASSERT_EQ(quantized.size(), 1U);
  EXPECT_EQ(quantized[0].weight, "second.weight");
}

TEST(RecipeWhatIf, WhereNoLayerFitsThePolicyIsBf16) {
  Two model = model_of();
  const auto result = ask(model, {.recipe = "mxfp8", .every = 2, .threshold = 0.012});
  EXPECT_TRUE(result.none_fits);
  EXPECT_THAT(result.left_out, ElementsAre("first", "second"));
  EXPECT_EQ(result.policy.to_string(), "");
}

// bf16's own error is above such a threshold: nothing is left out for it alone.
TEST(RecipeWhatIf, HarmThatBf16DoesAloneIsSaidSo) {
  Two model = model_of();
  model->body = [](TwoImpl& m, const at::Tensor& x) {
    return m.head->forward(m.second->forward(x).tanh() * 0 + x);
  };
  at::Tensor x = at::full({kRows, kIn}, 1 + 0x1p-8);  // which bf16 rounds to 1, and E4M3, too
  const auto result = ask(model, {.recipe = "mxfp8", .every = 2, .threshold = 1e-5},
                          {x, at::ones({kRows, 1}), kBatch});
  EXPECT_TRUE(layer_of(result, "head").harmed);
  EXPECT_EQ(layer_of(result, "head").cause, HarmCause::lower_precision);
  EXPECT_EQ(cause_text(layer_of(result, "head")), "bf16 alone");
  EXPECT_THAT(result.left_out, IsEmpty());
}

}  // namespace
}  // namespace demi::monitor::recipe_what_if
