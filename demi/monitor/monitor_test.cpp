#include "demi/monitor/monitor.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cmath>
#include <functional>
#include <limits>

#include "demi/core/error.h"
#include "demi/loop/observer.h"
#include "demi/loop/step.h"
#include "demi/nn/norm.h"
#include "demi/optim/sgd.h"
#include "demi/train/testing.h"
#include "demi/train/trainer.h"

namespace demi::monitor {
namespace {

using train::testing::Rows;

// Outputs of both layers are handed out, so that a test can ask for their gradients.
struct TwoLayersImpl : torch::nn::Module {
  torch::nn::Linear first{nullptr}, second{nullptr};
  std::vector<at::Tensor> outputs;
  TwoLayersImpl() {
    torch::manual_seed(1);
    first = register_module("first", torch::nn::Linear(6, 5));
    second = register_module("second", torch::nn::Linear(5, 3));
  }
  at::Tensor forward(const at::Tensor& x) {
    const at::Tensor a = first->forward(x), b = second->forward(a.relu());
    outputs = {a, b};
    return b;
  }
};
TORCH_MODULE(TwoLayers);

const at::Tensor& features() {
  static const at::Tensor x = [] {
    torch::manual_seed(2);
    return at::randn({28, 6}) * 1e-3;
  }();
  return x;
}

Rows batches() { return {features(), at::arange(28) % 3, 4}; }

// Trains and returns what the monitor reported.
template <class Holder>
std::vector<StepHealth> watch(Holder model, const data::Loader& loader, int64_t every,
                              train::TrainerOptions options = {}) {
  options.optimizers = {std::make_shared<optim::SGD>(model->parameters(), optim::SGDOptions(0.25))};
  train::Trainer trainer(train::network(model), options);
  std::vector<StepHealth> reported;
  trainer.add(
      std::make_shared<Monitor>(every, [&](const StepHealth& s) { reported.push_back(s); }));
  trainer.fit(loader);
  return reported;
}

TEST(Monitor, LooksAtTheFirstStepAndEachNthAfterIt) {
  const auto reported = watch(TwoLayers(), batches(), 3, {.read_every = 5});
  ASSERT_EQ(reported.size(), 3u);
  for (std::size_t i = 0; i < reported.size(); ++i) {
    EXPECT_EQ(reported[i].step, 1 + 3 * static_cast<int64_t>(i));
    ASSERT_EQ(reported[i].layers.size(), 2u);
    EXPECT_EQ(reported[i].layers[0].name, "first");
    EXPECT_EQ(reported[i].layers[1].name, "second");
    EXPECT_FALSE(reported[i].loss_scale);
    EXPECT_FALSE(reported[i].skipped);
    EXPECT_TRUE(reported[i].grad_norm);
  }
}

// Compared with the same graph by hand, with the scale in front of backward.
TEST(Monitor, CountsTheGradientsThatBackwardMakes) {
  TwoLayers model, by_hand;
  const at::Tensor x = features().slice(0, 0, 4), y = at::arange(4) % 3;
  const auto reported =
      watch(model, Rows(x, y, 4), 1, {.loss_scale = {LossScale::Kind::fixed, 1024}});
  ASSERT_EQ(reported.size(), 1u);
  EXPECT_EQ(reported[0].loss_scale, 1024);

  const at::Tensor loss = torch::nn::functional::cross_entropy(by_hand->forward(x), y);
  for (at::Tensor& output : by_hand->outputs) output.retain_grad();
  (loss * 1024).backward();
  const auto expect = [](const ExponentHistogram& seen, const std::vector<at::Tensor>& tensors) {
    ExponentCounter expected;
    for (const at::Tensor& t : tensors) expected.add(t);
    EXPECT_EQ(seen, expected.read());
  };
  const torch::nn::Linear layers[] = {by_hand->first, by_hand->second};
  for (std::size_t i = 0; i < 2; ++i) {
    expect(reported[0].layers[i].weight_gradients,
           {layers[i]->weight.grad(), layers[i]->bias.grad()});
    expect(reported[0].layers[i].activation_gradients, {by_hand->outputs[i].grad()});
    // SGD's update is lr × gradient.
    double change = 0, weights = 0;
    for (const at::Tensor& p : layers[i]->parameters()) {
      change += p.grad().div(1024).mul(0.25).square().sum().item<double>();
      weights += p.detach().square().sum().item<double>();
    }
    EXPECT_NEAR(reported[0].layers[i].update_ratio.value(), std::sqrt(change / weights), 1e-6);
  }
  expect(reported[0].weight_gradients(), {layers[0]->weight.grad(), layers[0]->bias.grad(),
                                          layers[1]->weight.grad(), layers[1]->bias.grad()});
}

// A norm that makes the sum before it in passing gives both. The layer's output is the normed rows:
// their gradients here are 2^3, and those of the sum are others.
TEST(Monitor, CountsTheGradientsOfANormThatMakesTheSumBefore) {
  struct NormedSumImpl : torch::nn::Module {
    torch::nn::Linear first = register_module("first", torch::nn::Linear(6, 5));
    nn::Norm norm{nullptr};
    explicit NormedSumImpl(nn::NormKind kind) {
      norm = register_module("norm", nn::Norm(nn::NormOptions{.width = 5, .kind = kind}));
    }
    at::Tensor forward(const at::Tensor& x) {
      const SumAndNorm both = norm->forward_add(first->forward(x), x.slice(1, 0, 5));
      return both.norm * 8 + both.sum * 0.125;
    }
  };
  for (const nn::NormKind kind : {nn::NormKind::layer_norm, nn::NormKind::rms_norm}) {
    const auto model = std::make_shared<NormedSumImpl>(kind);
    const auto reported = watch(
        torch::nn::ModuleHolder<NormedSumImpl>(model), Rows(features(), features(), 4), 1,
        {.max_steps = 1, .loss = train::LossFunction([](const at::Tensor& y, const at::Tensor&) {
                           return y.sum();
                         })});
    ASSERT_EQ(reported.size(), 1u);
    const LayerHealth& norm = reported[0].layers.back();
    EXPECT_EQ(norm.name, "norm");
    EXPECT_EQ(norm.activation_gradients, exponent_histogram(at::full({4, 5}, 8.F)));
    EXPECT_EQ(norm.weight_gradients.elements(), kind == nn::NormKind::layer_norm ? 10 : 5);
    EXPECT_TRUE(norm.update_ratio);
  }
}

TEST(Monitor, ChangesNoBitOfTheTraining) {
  TwoLayers watched, alone;
  watch(watched, batches(), 1, {.precision = parse_precision("fp16"), .accumulate = 2});
  train::TrainerOptions options{.precision = parse_precision("fp16"), .accumulate = 2};
  options.optimizers = {std::make_shared<optim::SGD>(alone->parameters(), optim::SGDOptions(0.25))};
  train::Trainer(train::network(alone), options).fit(batches());
  for (std::size_t i = 0; i < 4; ++i)
    EXPECT_TRUE(watched->parameters()[i].equal(alone->parameters()[i]));
}

// SGD's update is lr x gradient: 0.5 of one weight each, in a turn of its own.
TEST(Monitor, SeesTheUpdatesOfEveryTurn) {
  torch::nn::Linear critic(torch::nn::LinearOptions(1, 1).bias(false)),
      generator(torch::nn::LinearOptions(1, 1).bias(false));
  {
    const at::NoGradGuard no_grad;
    critic->weight.fill_(2);
    generator->weight.fill_(4);
  }
  optim::SGD of_critic(critic->parameters(), optim::SGDOptions(0.5)),
      of_generator(generator->parameters(), optim::SGDOptions(0.5));
  loop::Step step({.models = {{"critic", critic.ptr().get()}, {"generator", generator.ptr().get()}},
                   .optimizers = {&of_critic, &of_generator}},
                  {.read_every = 1});
  std::vector<StepHealth> reported;
  step.watch(std::make_shared<Monitor>(1, [&](const StepHealth& s) { reported.push_back(s); }));
  const auto sum_of = [](const at::Tensor& out) { return out.sum(); };
  const auto of = [](torch::nn::Linear& model) {
    return [&model] { return model->forward(at::ones({1, 1})); };
  };
  step.batch(of(critic), sum_of, {.of = {&of_critic}});
  step.take(of_critic);
  step.batch(of(generator), sum_of);
  step.finish();
  ASSERT_EQ(reported.size(), 1U);
  ASSERT_EQ(reported[0].layers.size(), 2U);
  EXPECT_DOUBLE_EQ(reported[0].layers[0].update_ratio.value(), 0.5 / 2);
  EXPECT_DOUBLE_EQ(reported[0].layers[1].update_ratio.value(), 0.5 / 4);
}

TEST(Monitor, AddsUpTheBatchesOfAStep) {
  const auto reported = watch(TwoLayers(), batches(), 2, {.accumulate = 3});  // 3, 3, 1 batches
  ASSERT_EQ(reported.size(), 2u);
  EXPECT_EQ(reported[0].layers[0].activation_gradients.elements(), 3 * 4 * 5);
  EXPECT_EQ(reported[0].layers[0].weight_gradients.elements(), 6 * 5 + 5);
  EXPECT_EQ(reported[1].layers[0].activation_gradients.elements(), 1 * 4 * 5);
}

/// The share of the first layer's weights that the first step leaves as they are, in bf16.
std::optional<double> unchanged_by(
    const std::function<std::shared_ptr<torch::optim::Optimizer>(std::vector<at::Tensor>)>& make) {
  TwoLayers model;
  train::TrainerOptions options{.max_steps = 1, .precision = parse_precision("bf16-true")};
  options.optimizers = {make(model->parameters())};
  train::Trainer trainer(train::network(model), options);
  std::optional<double> seen;
  trainer.add(std::make_shared<Monitor>(
      1, [&](const StepHealth& step) { seen = step.layers[0].unchanged; }));
  trainer.fit(batches());
  return seen;
}

// Updates between half a unit of FP32 and one of 24 bits, for most weights.
TEST(Monitor, TellsUpdatesThatTheFormatLoses) {
  constexpr double kRate = 1e-3;
  const auto by_demi = [&](optim::WeightMode mode) {
    return unchanged_by([&](const std::vector<at::Tensor>& parameters) {
      return std::make_shared<optim::SGD>(parameters, optim::SGDOptions(kRate),
                                          optim::StepOptions{.weight_mode = mode});
    });
  };
  EXPECT_GT(unchanged_by([&](const std::vector<at::Tensor>& parameters) {
              return std::make_shared<torch::optim::SGD>(parameters, kRate);
            }).value(),
            0.9);
  EXPECT_LT(by_demi(optim::WeightMode::master).value(), 0.2);
  EXPECT_LT(by_demi(optim::WeightMode::split).value(), 0.2);
  EXPECT_GT(by_demi(optim::WeightMode::split24).value(), 0.5);
  EXPECT_FALSE(by_demi(optim::WeightMode::stochastic)) << "small updates count in the mean";
}

TEST(Monitor, SaysThatAStepWasSkipped) {
  at::Tensor x = features().clone();
  x[0][0] = std::numeric_limits<float>::infinity();
  const auto reported = watch(TwoLayers(), Rows(x, at::arange(28) % 3, 14), 1);
  ASSERT_EQ(reported.size(), 2u);
  EXPECT_TRUE(reported[0].skipped);
  EXPECT_EQ(reported[0].layers[0].update_ratio, 0);
  EXPECT_FALSE(reported[0].layers[0].unchanged);
  EXPECT_GT(reported[0].layers[0].weight_gradients.nans, 0);
  EXPECT_FALSE(reported[1].skipped);
}

TEST(Monitor, SeesSixteenBitGradientsOfMixedRuns) {
  const auto reported =
      watch(TwoLayers(), Rows(features(), at::arange(28) % 3, 28), 1,
            {.precision = parse_precision("fp16"), .loss_scale = {LossScale::Kind::fixed, 0.001}});
  const ExponentHistogram all = reported[0].activation_gradients();
  EXPECT_EQ(all.elements(), 28 * (5 + 3));
  EXPECT_GT(all.subnormals, 28);  // below 2^-14: FP32 has no such subnormal numbers
}

// An op of N dimensions is a product and an addition, of which the last is the layer's output.
TEST(Monitor, CountsEachOutputOnce) {
  struct SequenceImpl : torch::nn::Module {
    torch::nn::Embedding embedding{nullptr};
    torch::nn::LSTM lstm{nullptr};
    torch::nn::Linear linear{nullptr};
    SequenceImpl() {
      embedding = register_module("embedding", torch::nn::Embedding(11, 6));
      lstm = register_module(
          "lstm", torch::nn::LSTM(torch::nn::LSTMOptions(6, 5).batch_first(true).num_layers(2)));
      linear = register_module("linear", torch::nn::Linear(5, 3));
    }
    at::Tensor forward(const at::Tensor& words) {
      return linear->forward(std::get<0>(lstm->forward(embedding->forward(words)))).mean(1);
    }
  };
  struct Sequence : torch::nn::ModuleHolder<SequenceImpl> {
    using torch::nn::ModuleHolder<SequenceImpl>::ModuleHolder;
  };
  for (const char* precision : {"fp32", "bf16"}) {
    SCOPED_TRACE(precision);
    const auto reported =
        watch(Sequence(), Rows(at::arange(56).view({8, 7}) % 11, at::arange(8) % 3, 8), 1,
              {.precision = parse_precision(precision)});
    ASSERT_EQ(reported.size(), 1u);
    ASSERT_EQ(reported[0].layers.size(), 3u);
    EXPECT_EQ(reported[0].layers[0].activation_gradients.elements(), 8 * 7 * 6);
    EXPECT_EQ(reported[0].layers[1].activation_gradients.elements(), 8 * 7 * 5);
    EXPECT_EQ(reported[0].layers[2].activation_gradients.elements(), 8 * 7 * 3);
  }
}

TEST(Monitor, KnowsConvolutionsAndNormalizationUnderAutocast) {
  for (const char* precision : {"fp32", "bf16", "bf16-true"}) {
    SCOPED_TRACE(precision);
    torch::nn::Sequential model(torch::nn::Conv2d(1, 4, 3), torch::nn::BatchNorm2d(4),
                                torch::nn::ReLU(torch::nn::ReLUOptions(true)), torch::nn::Flatten(),
                                torch::nn::Linear(4 * 36, 3));
    const auto reported = watch(model, Rows(at::randn({2, 1, 8, 8}), at::arange(2), 2), 1,
                                {.precision = parse_precision(precision)});
    ASSERT_EQ(reported[0].layers.size(), 3u);
    EXPECT_EQ(reported[0].layers[0].name, "0");
    EXPECT_EQ(reported[0].layers[0].activation_gradients.elements(), 2 * 4 * 36);
    EXPECT_EQ(reported[0].layers[1].activation_gradients.elements(), 2 * 4 * 36);
    EXPECT_EQ(reported[0].layers[2].activation_gradients.elements(), 2 * 3);
  }
}

TEST(Monitor, APenaltyOfGradientsIsNotTakenForALayersOutput) {
  const auto reported = watch(TwoLayers(), batches(), 7, {.gradient_penalty = 0.5});
  // The output is used twice: in the loss, and in the gradients that are penalised.
  EXPECT_EQ(reported[0].layers[1].activation_gradients.elements() % (4 * 3), 0);
  EXPECT_LE(reported[0].layers[1].activation_gradients.elements(), 2 * 4 * 3);
}

TEST(Monitor, SamplesLargeWeights) {
  torch::nn::Sequential model(torch::nn::Linear(1024, 300), torch::nn::Linear(300, 3));
  const at::Tensor weight = model->parameters()[0];
  const at::Tensor before = weight.detach().clone();
  const auto reported = watch(model, Rows(at::randn({4, 1024}), at::arange(4) % 3, 4), 1);
  const double exact = ((weight - before).norm() / before.norm()).item<double>();
  EXPECT_NEAR(reported[0].layers[0].update_ratio.value(), exact, 0.1 * exact);
}

// One row in eight of the weight is looked at, and all of the shift, which is too large to move.
struct ShiftedImpl : torch::nn::Module {
  at::Tensor weight, shift, signs;
  ShiftedImpl() {
    torch::manual_seed(6);
    weight = register_parameter("weight", torch::randn({512, 1024}) * 0.03);
    shift = register_parameter("shift", torch::full({512}, 100.0));
    signs = (torch::randint(2, {512, 1}) * 2 - 1) * torch::tensor({0.05, -0.03, 0.01});
  }
  at::Tensor forward(const at::Tensor& x) const {
    return (at::linear(x.sign(), weight) + shift * 1e-7).mm(signs);
  }
};
TORCH_MODULE(Shifted);

TEST(Monitor, ASampleCountsForAllOfItsParameter) {
  const Shifted model;
  const at::Tensor weight = model->weight.detach().clone();
  const auto reported = watch(model, Rows(at::randn({4, 1024}), at::arange(4) % 3, 4), 1);
  ASSERT_TRUE(model->shift.eq(100).all().item<bool>());
  const auto square = [](const at::Tensor& t) { return t.square().sum().item<double>(); };
  const double exact =
      std::sqrt(square(model->weight - weight) / (square(weight) + square(model->shift)));
  const LayerHealth& layer = reported[0].layers[0];
  EXPECT_NEAR(layer.update_ratio.value(), exact, 0.05 * exact);
  EXPECT_NEAR(layer.unchanged.value(), 1.0 / 1025, 1e-9);
}

TEST(Monitor, RefusesNoStepsBetweenLooks) { EXPECT_THROW(Monitor(0, {}), UsageError); }

// Each share by the definition: fp16 rounds below 2^-25 to zero and 2^16 to infinity.
TEST(FlushedShares, AreThoseOfEachNumber) {
  const float inf = std::numeric_limits<float>::infinity();
  const at::Tensor scaled = at::tensor(
      {0.F, 0x1p-26F, 0x1.8p-26F, -0x1p-20F, 1.F, 0x1p15F, 0x1p16F, -0x1p30F, inf, std::nanf("")});
  const FlushedShares shares = flushed_shares(exponent_histogram(scaled), 1024);
  EXPECT_DOUBLE_EQ(shares.zero, 0.1);
  EXPECT_DOUBLE_EQ(shares.flushed_scaled, 0.2);       // 2^-26, 1.5 × 2^-26
  EXPECT_DOUBLE_EQ(shares.flushed_unscaled, 0.3);     // 2^-20 / 1024, too
  EXPECT_DOUBLE_EQ(shares.overflowed_scaled, 0.4);    // 2^16, 2^30, Inf, NaN
  EXPECT_DOUBLE_EQ(shares.overflowed_unscaled, 0.3);  // without 2^16 / 1024
  EXPECT_DOUBLE_EQ(flushed_shares({}, 1024).zero, 0);
}

TEST(FlushedShares, AScaleThatIsNoPowerOfTwoCountsAsTheNearest) {
  const auto counts = exponent_histogram(at::ones({3}));
  EXPECT_EQ(unscaled(counts, 1000), counts.shifted(-10));
}

// The greatest gradient sets each layer's scale: 448 / 2^-10 is 2^18.8, 57,344 / 2^-17 is 2^32.8,
// 6 / 0.25 is 2^4.6. Numbers from the next power of two on count as kept.
TEST(NarrowShares, CountWhatIsBelowTheReachOfTheLayersOwnScale) {
  const auto histogram = [](std::vector<int> exponents) {
    ExponentHistogram counts;
    for (const int e : exponents)
      ++counts.counts[static_cast<std::size_t>(e - ExponentHistogram::kLowest)];
    return counts;
  };
  StepHealth step;
  step.layers = {{.name = "large", .weight_gradients = histogram({10, 5, 4, -9, -10, -23, -24})},
                 {.name = "small", .weight_gradients = histogram({-100})},
                 {.name = "none"}};
  step.layers[0].weight_gradients.zeros = 2;  // which are no loss
  const NarrowShares shares = narrow_shares(step, &LayerHealth::weight_gradients);
  EXPECT_DOUBLE_EQ(shares.e2m1, 5.0 / 10) << "2^4 and below, of 2^10";
  EXPECT_DOUBLE_EQ(shares.e4m3, 3.0 / 10) << "2^-10 and below";
  EXPECT_DOUBLE_EQ(shares.e5m2, 1.0 / 10) << "2^-24";
  EXPECT_EQ(narrow_shares(step, &LayerHealth::activation_gradients).e2m1, 0) << "there are none";
}

}  // namespace
}  // namespace demi::monitor
