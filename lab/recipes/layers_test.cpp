#include "lab/recipes/layers.h"

#include <gtest/gtest.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/dropout.h>
#include <torch/nn/modules/linear.h>
#include <torch/types.h>
#include <torch/utils.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "demi/core/error.h"
#include "demi/data/tensor_loader.h"
#include "demi/nn/transformer_block.h"
#include "lab/models/gpt.h"
#include "lab/recipes/run.h"
#include "lab/settings/resolved.h"

namespace demi::recipes {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();

TEST(Difference, IsThatOfItsFormula) {
  const Difference d = difference(torch::tensor({3.F, 4.F, 0.F}), torch::tensor({3.F, 4.5F, 0.F}));
  EXPECT_DOUBLE_EQ(d.error, 0.1);
  EXPECT_DOUBLE_EQ(d.cosine, (9 + 18) / (5 * std::sqrt(9 + 20.25)));
  EXPECT_EQ(d.flushed, 0);
  EXPECT_EQ(d.nonfinite, 0);
  EXPECT_EQ(d.least, 3);
  EXPECT_EQ(d.greatest, 4);
}

TEST(Difference, CountsWhatIsLost) {
  const at::Tensor exact = torch::tensor({-3.F, 4.F, 0.F, 1e-9F});
  const Difference flushed = difference(exact, torch::tensor({0.F, 4.F, 1.F, 0.F}));
  EXPECT_DOUBLE_EQ(flushed.flushed, 2.0 / 3);
  const Difference all = difference(exact, torch::zeros(4));
  EXPECT_EQ(all.flushed, 1);
  EXPECT_EQ(all.error, 1);
  EXPECT_EQ(all.cosine, 0);
  EXPECT_EQ(difference(exact, -exact).cosine, -1);
  EXPECT_EQ(difference(exact, -exact).error, 2);
  const Difference beyond = difference(exact, torch::tensor({-3.F, kInf, 0.F, std::nanf("")}));
  EXPECT_EQ(beyond.nonfinite, 2);
  EXPECT_EQ(beyond.error, kInf);
  EXPECT_EQ(beyond.cosine, 1) << "of what is left";
}

TEST(Difference, OfNothingIsNone) {
  for (const at::Tensor& none : {torch::zeros(3), torch::empty(0), torch::full(2, kInf)}) {
    const Difference d = difference(none, none);
    EXPECT_EQ(d.error, 0);
    EXPECT_EQ(d.cosine, 1);
    EXPECT_EQ(d.greatest, 0);
    EXPECT_EQ(d.nonfinite, 0);
  }
  EXPECT_EQ(difference(torch::zeros(2), torch::ones(2)).error, kInf);
}

class Layers : public ::testing::Test {
 protected:
  Layers() {
    config_.loss = "mse";
    config_.optimizer = "sgd";
    config_.batch_size = 1;
  }

  // Linear layers of one weight each, and one row.
  void use(std::vector<float> weights, float input) {
    workload_.make_network = [weights](uint64_t) {
      torch::nn::Sequential model;
      const torch::NoGradGuard no_grad;
      for (const float weight : weights) {
        torch::nn::Linear layer(1, 1);
        layer->weight.fill_(weight);
        layer->bias.zero_();
        model->push_back(layer);
      }
      return train::network(model);
    };
    workload_.train = std::make_shared<data::TensorLoader>(
        torch::full({1, 1}, input), torch::zeros({1, 1}), data::OrderOptions{.batch_size = 1});
  }

  LayerComparison compared(const std::string& run, int64_t steps = 0) {
    return compare_layers({.config = config_,
                           .runs = settings::resolve(config_, settings::parse_runs("fp32," + run)),
                           .steps = steps},
                          workload_)
        .front();
  }

  settings::Config config_;
  workload::Workload workload_;
};

// bf16 has 8 digits: 1 + 2^-8 lies half way between 1 and 1 + 2^-7 and goes to the even 1, and
// 1 + 2^-9 goes to 1. The loss is the square of the output.
TEST_F(Layers, OfALinearLayerRoundedByHand) {
  const double weight = 1 + 0x1p-8, input = 1 + 0x1p-9, output = weight * input;
  use({static_cast<float>(weight)}, static_cast<float>(input));
  const LayerComparison seen = compared("bf16");
  ASSERT_EQ(seen.layers.size(), 1u);
  EXPECT_EQ(seen.loss_scale, 1);
  EXPECT_EQ(seen.loss, 1);
  EXPECT_NEAR(seen.exact_loss, output * output, 1e-6);
  const LayerDifference& layer = seen.layers[0];
  EXPECT_EQ(layer.name, "0");
  EXPECT_EQ(layer.op, "addmm");
  EXPECT_DOUBLE_EQ(layer.output.error, (output - 1) / output);
  EXPECT_DOUBLE_EQ(layer.output.greatest, output);
  EXPECT_NEAR(layer.gradient.error, (output - 1) / output, 1e-7) << "2 y";
  EXPECT_NEAR(layer.gradient.greatest, 2 * output, 1e-6);
  // (2 y x, 2 y) of weight and bias, in bf16 (2, 2)
  EXPECT_NEAR(layer.weight_gradient.error,
              std::hypot(output * input - 1, output - 1) / std::hypot(output * input, output),
              1e-6);
}

// E4M3 has 4 digits: 1 + 2^-5 goes to 1. The last layer is bf16, where all of this is exact.
TEST_F(Layers, ARunInARecipeIsComparedAsTheOthers) {
  use({1 + 0x1p-5F, 1}, 1);
  const LayerComparison seen = compared("mxfp8");
  ASSERT_EQ(seen.layers.size(), 2u);
  for (const LayerDifference& layer : seen.layers) {
    EXPECT_EQ(layer.op, "addmm") << layer.name;
    EXPECT_DOUBLE_EQ(layer.output.error, 0x1p-5 / (1 + 0x1p-5)) << layer.name;
    EXPECT_EQ(layer.output.cosine, 1) << layer.name;
    EXPECT_GT(layer.weight_gradient.error, 0x1p-6) << layer.name << ", of 2 y";
    EXPECT_LT(layer.weight_gradient.error, 0x1p-4) << layer.name;
  }
  EXPECT_EQ(compared("bf16").layers[0].output.error, 0);
}

// The gradient is 2 y 1e-9 = 6e-9, under 2^-25.
TEST_F(Layers, AGradientThatIsFlushedIsSeenAndALossScaleSavesIt) {
  use({3}, 1);
  config_.loss_weight = 1e-9;
  const LayerComparison lost = compared("fp16:no-scaler");
  EXPECT_EQ(lost.layers[0].output.error, 0);
  EXPECT_EQ(lost.layers[0].gradient.flushed, 1);
  EXPECT_EQ(lost.layers[0].gradient.error, 1);
  EXPECT_EQ(lost.layers[0].weight_gradient.error, 1);
  const LayerComparison saved = compared("fp16");
  EXPECT_EQ(saved.loss_scale, 65536);
  EXPECT_EQ(saved.layers[0].gradient.flushed, 0);
  EXPECT_LT(saved.layers[0].gradient.error, 0x1p-11);
  EXPECT_LT(saved.layers[0].weight_gradient.error, 0x1p-10);
}

// 2 y x 65536 is beyond 65,504 for y = 8 until the scale is 4,096 or less: 2 x 8 x 4096 = 65536
// still is Inf, 2 x 8 x 2048 is not.
TEST_F(Layers, ADynamicScaleFindsItsPlace) {
  use({8}, 1);
  EXPECT_EQ(compared("fp16").loss_scale, 2048);
  EXPECT_EQ(compared("fp16").layers[0].harm(), 0);
  EXPECT_EQ(compared("fp16:scale=4096").layers[0].gradient.nonfinite, 1);
}

TEST_F(Layers, TheFirstLayerThatOverflowsComesFirst) {
  use({1, 300, 1, 0.5}, 300);
  const LayerComparison forward = compared("fp16");
  ASSERT_EQ(forward.layers.size(), 4u);
  EXPECT_EQ(forward.layers[0].name, "1") << "300 x 300";
  EXPECT_EQ(forward.layers[0].output.nonfinite, 1);
  EXPECT_EQ(forward.loss_scale, 1) << "no scale mends it";
  use({1, 1, 1, 1}, 1);
  const LayerComparison backward = compared("fp16:scale=65536");
  EXPECT_EQ(backward.layers[0].name, "3") << "2 x 65536 enters there";
  EXPECT_EQ(backward.layers[3].name, "0");
}

TEST_F(Layers, ARunWithoutItsRegionHasNoError) {
  use({1 + 0x1p-8F}, 1 + 0x1p-9F);
  EXPECT_EQ(compared("bf16:no-autocast").layers[0].harm(), 0);
  EXPECT_EQ(compared("bf16:fp32-part=0").layers[0].output.error, 0);
  EXPECT_GT(compared("bf16-true").layers[0].output.error, 0);
  EXPECT_THROW(compare_layers({.config = config_,
                               .runs = settings::resolve(config_, settings::parse_runs("fp32"))},
                              workload_),
               UsageError);
  EXPECT_THROW(compared("bf16:fp32-part=1"), UsageError);
}

// A network of other layers: what they give is what one computes by hand, before an op in place.
TEST_F(Layers, AreTracedByTheirWeights) {
  torch::manual_seed(3);
  torch::nn::Conv2d convolution(torch::nn::Conv2dOptions(1, 2, 3));
  torch::nn::BatchNorm2d norm(2);
  torch::nn::Linear linear(2, 3);
  torch::nn::Sequential model;
  model->push_back("convolution", convolution);
  model->push_back("norm", norm);
  model->push_back("dropout", torch::nn::Dropout(0.5));
  model->push_back("linear", linear);
  const train::Network net{.module = model.ptr(), .forward = [=](const data::Batch& batch) mutable {
                             at::Tensor x = norm->forward(convolution->forward(batch.input));
                             x = x.relu_();
                             x = model[2]->as<torch::nn::Dropout>()->forward(x.mean({2, 3}));
                             return linear->forward(linear->forward(x).slice(1, 0, 2).unsqueeze(1));
                           }};
  const at::Tensor input = torch::randn({4, 1, 5, 5});
  const NetworkTrace trace =
      trace_layers(settings::resolve(config_, settings::parse_run("fp32")), net,
                   {input, torch::zeros({4, 1, 3}), {}}, /*loss_scale=*/4);
  ASSERT_EQ(trace.layers.size(), 4u);
  const at::Tensor first = convolution->forward(input);
  EXPECT_EQ(trace.layers[0].name, "convolution");
  EXPECT_TRUE(at::equal(trace.layers[0].output, first));
  EXPECT_EQ(trace.layers[1].name, "norm");
  EXPECT_TRUE(at::allclose(trace.layers[1].output, norm->forward(first)));
  EXPECT_LT(trace.layers[1].output.min().item<float>(), 0) << "before the op in place";
  EXPECT_EQ(trace.layers[2].name, "linear");
  EXPECT_EQ(trace.layers[3].name, "linear (2)") << "in three dimensions: a product, then the bias";
  const at::Tensor pooled = norm->forward(first).relu().mean({2, 3});
  EXPECT_TRUE(at::allclose(trace.layers[2].output, linear->forward(pooled)));
  const at::Tensor last = linear->forward(linear->forward(pooled).slice(1, 0, 2).unsqueeze(1));
  EXPECT_TRUE(at::allclose(trace.layers[3].output, last));
  EXPECT_TRUE(at::allclose(trace.layers[3].gradient, 2 * last / 12)) << "of mse, unscaled";
  EXPECT_TRUE(trace.finite_gradients);
  ASSERT_EQ(trace.layers[0].weight_gradients.size(), 2u);
  EXPECT_TRUE(trace.layers[3].weight_gradients.empty()) << "they stand with the first use";
  model->zero_grad();
  last.square().mean().backward();
  EXPECT_TRUE(
      at::allclose(trace.layers[0].weight_gradients[0], convolution->weight.grad(), 1e-4, 1e-6));
  EXPECT_TRUE(at::allclose(trace.layers[2].weight_gradients[1], linear->bias.grad(), 1e-4, 1e-6));
}

// A block's norms make the sums before them in passing, and give two results. What is traced is the
// normed rows, by LibTorch's operators: x + attention(norm1(x)) and the feed-forward part behind
// it.
TEST_F(Layers, NormsThatMakeTheSumBeforeThemAreTracedByTheirRows) {
  for (const nn::NormKind kind : {nn::NormKind::layer_norm, nn::NormKind::rms_norm}) {
    torch::manual_seed(5);
    nn::TransformerBlock block(nn::TransformerBlockOptions{.width = 8, .heads = 2, .norm = kind});
    const bool is_layer_norm = kind == nn::NormKind::layer_norm;
    const auto normed = [&](const nn::Norm& norm, const at::Tensor& x) {
      return is_layer_norm ? at::layer_norm(x, {8}, norm->weight, norm->bias, 1e-5)
                           : at::rms_norm(x, {8}, norm->weight, 1e-5);
    };
    const at::Tensor x = torch::randn({2, 3, 8}), target = torch::randn({2, 3, 8});
    const at::Tensor first = normed(block->norm1, x);
    const at::Tensor sum = x + block->attention->forward(first);
    const at::Tensor second = normed(block->norm2, sum);
    const at::Tensor loss = (sum + block->feed_forward->forward(second) - target).square().mean();
    for (const at::Tensor& rows : {first, second}) rows.retain_grad();
    loss.backward();
    const std::vector<at::Tensor> weights = block->norm2->parameters();
    std::vector<at::Tensor> of_weights;
    for (const at::Tensor& weight : weights) of_weights.push_back(weight.grad().clone());
    block->zero_grad();

    const train::Network net{.module = block.ptr(), .forward = [&](const data::Batch& batch) {
                               return block->forward(batch.input);
                             }};
    for (const char* const precision : {"fp32", "bf16"}) {
      const double tolerance = precision == std::string("fp32") ? 1e-5 : 0.05;
      const NetworkTrace trace =
          trace_layers(settings::resolve(config_, settings::parse_run(precision)), net,
                       {x, target, {}}, /*loss_scale=*/4);
      for (const auto& [name, rows] : {std::pair{"norm1", first}, {"norm2", second}}) {
        const auto seen = std::ranges::find(trace.layers, name, &LayerTrace::name);
        ASSERT_NE(seen, trace.layers.end()) << name;
        EXPECT_EQ(seen->op, is_layer_norm ? "demi::add_layer_norm" : "demi::add_rms_norm");
        EXPECT_LT(difference(rows, seen->output).error, tolerance) << name << precision;
        EXPECT_LT(difference(rows.grad(), seen->gradient).error, tolerance) << name << precision;
      }
      const auto seen = std::ranges::find(trace.layers, "norm2", &LayerTrace::name);
      ASSERT_EQ(seen->weight_gradients.size(), weights.size());
      for (std::size_t i = 0; i < weights.size(); ++i)
        EXPECT_LT(difference(of_weights[i], seen->weight_gradients[i]).error, tolerance) << i;
    }
  }
}

// Parts that drop by an option, not by a module.
TEST_F(Layers, OfBlocksAreTracedWithoutTheirDropout) {
  const settings::Resolved run = settings::resolve(config_, settings::parse_run("fp32"));
  std::vector<double> of_blocks, of_gpts;
  for (const double dropout : {0.0, 0.5}) {
    torch::manual_seed(5);
    nn::TransformerBlock block(nn::TransformerBlockOptions{
        .width = 8, .heads = 2, .attention_dropout = dropout, .residual_dropout = dropout});
    models::GPT gpt(models::GPTOptions{
        .vocabulary = 5, .context = 4, .width = 8, .layers = 1, .heads = 2, .dropout = dropout});
    torch::nn::AlphaDropout last(dropout);
    block->register_module("last", last.ptr());
    const at::Tensor x = torch::randn({2, 4, 8}), tokens = torch::randint(5, {2, 4});
    const train::Network of_block{.module = block.ptr(), .forward = [&](const data::Batch& batch) {
                                    return last->forward(block->forward(batch.input));
                                  }};
    of_blocks.push_back(trace_layers(run, of_block, {x, torch::zeros({2, 4, 8}), {}}, 1).loss);
    const train::Network of_gpt{.module = gpt.ptr(), .forward = [&](const data::Batch& batch) {
                                  return gpt->forward(batch.input);
                                }};
    of_gpts.push_back(trace_layers(run, of_gpt, {tokens, torch::zeros({2, 4, 5}), {}}, 1).loss);
  }
  EXPECT_EQ(of_blocks[0], of_blocks[1]);
  EXPECT_EQ(of_gpts[0], of_gpts[1]);
}

/// As a network from Python has it.
TEST_F(Layers, DropoutOfNoModuleDropsTheSameInEachTrace) {
  torch::nn::Linear linear(16, 16);
  train::Network net;
  net.module = linear.ptr();
  net.forward = [linear](const data::Batch& batch) mutable {
    return torch::dropout(linear->forward(batch.input), 0.5, true);
  };
  const data::Batch batch{.input = torch::ones({4, 16}), .target = torch::zeros({4, 16})};
  const settings::Resolved run = settings::resolve(config_, settings::parse_run("fp32"));
  const double first = trace_layers(run, net, batch, 1).loss;
  EXPECT_EQ(trace_layers(run, net, batch, 1).loss, first);
  torch::manual_seed(3);
  trace_layers(run, net, batch, 1);
  const at::Tensor drawn = torch::rand({1});
  torch::manual_seed(3);
  EXPECT_TRUE(torch::rand({1}).equal(drawn)) << "the caller's numbers stay as they were";
}

// After two steps of FP32 the loss is that of the third step of a run.
TEST_F(Layers, AreThoseAfterSoManySteps) {
  use({3}, 1);
  config_.lr = 0.125;
  config_.epochs = 3;  // of one batch
  const RunResult trained =
      run(settings::resolve(config_, settings::parse_run("fp32")), workload_, {});
  ASSERT_EQ(trained.history.steps.size(), 3u);
  EXPECT_FLOAT_EQ(static_cast<float>(compared("bf16", 0).exact_loss),
                  static_cast<float>(trained.history.steps[0].loss));
  EXPECT_FLOAT_EQ(static_cast<float>(compared("bf16", 2).exact_loss),
                  static_cast<float>(trained.history.steps[2].loss));
  config_.schedule = "one-cycle";
  EXPECT_NO_THROW(compared("bf16", 3));
  EXPECT_THROW(compared("bf16", 4), UsageError) << "its rates end after three steps";
}

// The gradient of (w + b)^2 is 2 (w + b) for both, so that each step at a rate of 1/8 halves w + b.
TEST_F(Layers, AreThoseAfterStepsOfSeveralBatches) {
  use({3}, 1);
  workload_.train = std::make_shared<data::TensorLoader>(torch::ones({4, 1}), torch::zeros({4, 1}),
                                                         data::OrderOptions{.batch_size = 1});
  config_.lr = 0.125;
  for (const int64_t batches : {1, 2, 4}) {
    config_.accumulate = batches;
    EXPECT_FLOAT_EQ(static_cast<float>(compared("bf16", 5).exact_loss), 9 * 0x1p-10F) << batches;
  }
}

// An epoch of three batches has a step of two and a step of one. The loss of a batch is the square
// of its row.
TEST_F(Layers, AreThoseOfTheBatchBehindTheSteps) {
  use({1}, 1);
  workload_.train = std::make_shared<data::TensorLoader>(torch::tensor({{1.F}, {2.F}, {3.F}}),
                                                         torch::zeros({3, 1}),
                                                         data::OrderOptions{.batch_size = 1});
  config_.lr = 1e-30;
  config_.accumulate = 2;
  for (const auto& [steps, row] : {std::pair{0, 1.0}, {1, 3.0}, {2, 1.0}, {3, 3.0}})
    EXPECT_EQ(compared("bf16", steps).exact_loss, row * row) << steps;
  config_.accumulate = 1;
  EXPECT_EQ(compared("bf16", 4).exact_loss, 4);
}

}  // namespace
}  // namespace demi::recipes
