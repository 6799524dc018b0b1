#include "demi/recompute/recompute.h"

#include <ATen/autocast_mode.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <functional>
#include <optional>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "demi/attention/attention.h"
#include "demi/autocast/autocast.h"
#include "demi/core/error.h"
#include "demi/nn/linear_cross_entropy.h"
#include "demi/nn/transformer_block.h"
#include "demi/optim/sgd.h"
#include "demi/weights/weights.h"

// The truth is the same program without recompute: gradients have to be the same bits.
namespace demi {
namespace {

using testing::HasSubstr;
using Tensors = std::vector<at::Tensor>;
using Program = std::function<at::Tensor(bool recomputed)>;

at::Tensor call(bool recomputed, const std::function<at::Tensor(const at::Tensor&)>& function,
                const at::Tensor& x, const RecomputeOptions& options = {}) {
  return recomputed ? recompute(function, x, options) : function(x);
}

struct Outcome {
  at::Tensor loss, generator;
  Tensors gradients;
};

// Of a program that returns a loss; what it leaves in the CPU's generator counts, too.
Outcome outcome_of(const Program& program, const Tensors& leaves, bool recomputed,
                   double scale = 1) {
  torch::manual_seed(3);
  for (const auto& leaf : leaves) leaf.mutable_grad() = at::Tensor();
  const auto loss = program(recomputed);
  (loss * scale).backward();
  Outcome outcome{loss.detach().clone(), at::detail::getDefaultCPUGenerator().get_state(), {}};
  for (const auto& leaf : leaves)
    outcome.gradients.push_back(leaf.grad().defined() ? leaf.grad().clone() : at::Tensor());
  return outcome;
}

void expect_same_bits(const at::Tensor& got, const at::Tensor& want) {
  ASSERT_EQ(got.defined(), want.defined());
  if (!want.defined()) return;
  EXPECT_EQ(got.scalar_type(), want.scalar_type());
  EXPECT_TRUE(torch::equal(got, want)) << (got - want).abs().max();
}

void expect_same(const Program& program, const Tensors& leaves, double scale = 1) {
  const auto want = outcome_of(program, leaves, false, scale);
  const auto got = outcome_of(program, leaves, true, scale);
  expect_same_bits(got.loss, want.loss);
  expect_same_bits(got.generator, want.generator);
  double total = 0;
  for (std::size_t i = 0; i < leaves.size(); ++i) {
    SCOPED_TRACE(testing::Message() << "leaf " << i);
    expect_same_bits(got.gradients[i], want.gradients[i]);
    if (want.gradients[i].defined()) total += want.gradients[i].abs().sum().item<double>();
  }
  EXPECT_GT(total, 0);
}

struct Layers {
  torch::nn::Sequential one{torch::nn::Linear(8, 16), torch::nn::GELU(), torch::nn::Linear(16, 8)};
  torch::nn::Linear two{8, 8};
  at::Tensor x;

  Layers() {
    torch::manual_seed(1);
    for (auto& parameter : leaves()) parameter.data().normal_(0, 0.3);
    x = torch::randn({5, 8}).requires_grad_();
  }
  Tensors leaves() const {
    auto all = one->parameters();
    for (const auto& parameter : two->parameters()) all.push_back(parameter);
    if (x.defined()) all.push_back(x);
    return all;
  }
  at::Tensor loss(bool recomputed) {
    const auto y = call(
        recomputed, [this](const at::Tensor& t) { return one->forward(t); }, x);
    return two->forward(y.relu()).to(torch::kFloat).square().mean();
  }
};

TEST(Recompute, HasTheGradientsOfThePlainRun) {
  Layers layers;
  expect_same([&](bool on) { return layers.loss(on); }, layers.leaves());
}

TEST(Recompute, HasThemInEveryRegion) {
  Layers layers;
  for (const auto dtype : {torch::kBFloat16, torch::kHalf})
    for (const bool cache : {true, false})
      for (const bool enabled : {true, false}) {
        SCOPED_TRACE(testing::Message() << dtype << cache << enabled);
        const auto program = [&](bool on) {
          const Autocast region(
              torch::kCPU,
              AutocastOptions{.dtype = dtype, .enabled = enabled, .cache_enabled = cache});
          return layers.loss(on);
        };
        expect_same(program, layers.leaves(), dtype == torch::kHalf ? 65536 : 1);
      }
}

TEST(Recompute, HasTheRegionOfForwardWhereBackwardIsInAnother) {
  Layers layers;
  const auto run = [&](bool on) {
    std::optional<Autocast> region;
    region.emplace(torch::kCPU, torch::kBFloat16);
    auto loss = layers.loss(on);
    region.reset();
    for (const auto& leaf : layers.leaves()) leaf.mutable_grad() = at::Tensor();
    const Autocast other(torch::kCPU, torch::kHalf);
    loss.backward();
    EXPECT_TRUE(at::autocast::is_autocast_enabled(torch::kCPU));
    EXPECT_EQ(at::autocast::get_autocast_dtype(torch::kCPU), torch::kHalf);
    Tensors gradients;
    for (const auto& leaf : layers.leaves()) gradients.push_back(leaf.grad().clone());
    return gradients;
  };
  const auto want = run(false), got = run(true);
  for (std::size_t i = 0; i < want.size(); ++i) expect_same_bits(got[i], want[i]);
}

TEST(Recompute, KeepsThePolicyOfItsRegion) {
  Layers layers;
  const auto program = [&](bool on) {
    OpPolicy policy;
    policy.set("addmm", OpCategory::fp32, "a test");
    const Autocast region(torch::kCPU,
                          AutocastOptions{.dtype = torch::kBFloat16, .policy = policy});
    return layers.loss(on);
  };
  expect_same(program, layers.leaves());
}

TEST(Recompute, DrawsTheSameDropout) {
  Layers layers;
  const auto program = [&](bool on) {
    const auto drop = [&](const at::Tensor& t) {
      return at::dropout(layers.one->forward(at::dropout(t, 0.5, true)), 0.3, true);
    };
    const auto y = call(on, drop, layers.x);
    return at::dropout(layers.two->forward(call(on, drop, y)), 0.5, true).square().mean();
  };
  expect_same(program, layers.leaves());
}

TEST(Recompute, DrawsAnewIfTheStateIsNotPreserved) {
  auto x = torch::ones({1000}).requires_grad_();
  const auto drop = [](const at::Tensor& t) { return at::dropout(t, 0.5, true); };
  torch::manual_seed(1);
  const auto y = recompute(drop, x, {.preserve_random_state = false});
  y.sum().backward();
  EXPECT_FALSE(torch::equal(x.grad(), y.detach()));
}

TEST(Recompute, WorksWithTransformerBlocksAndTheirDropout) {
  torch::manual_seed(2);
  nn::TransformerBlock block(nn::TransformerBlockOptions{
      .width = 16, .heads = 2, .attention_dropout = 0.2, .residual_dropout = 0.2});
  auto x = torch::randn({2, 12, 16}).requires_grad_();
  const auto weight = torch::randn({30, 16}).requires_grad_();
  const auto target = torch::randint(30, {2, 12}, torch::kLong);
  auto leaves = block->parameters();
  leaves.push_back(x);
  leaves.push_back(weight);
  for (const bool in_region : {false, true}) {
    SCOPED_TRACE(in_region);
    const auto program = [&](bool on) {
      std::optional<Autocast> region;
      if (in_region) region.emplace(torch::kCPU, torch::kBFloat16);
      const auto once = [&](const at::Tensor& t) { return block->forward(t); };
      const auto y = call(on, once, call(on, once, x));
      return call(
          on, [&](const at::Tensor& t) { return linear_cross_entropy(t, weight, target); }, y);
    };
    expect_same(program, leaves);
  }
}

TEST(Recompute, RestoresTheRegionInsideABackwardThatExcludesIt) {
  torch::manual_seed(2);
  const auto w = torch::randn({16, 16}).requires_grad_();
  auto x = torch::randn({1, 2, 12, 16}).requires_grad_();
  const auto program = [&](bool on) {
    const Autocast region(torch::kCPU, torch::kBFloat16);
    return call(
               on,
               [&](const at::Tensor& t) {
                 const auto q = at::matmul(t, w);
                 return attention(q, q, q, {.causal = true, .dropout = 0.1});
               },
               x)
        .to(torch::kFloat)
        .square()
        .mean();
  };
  expect_same(program, {w, x});
}

// Reads what it saved with autograd switched off.
struct Square : torch::autograd::Function<Square> {
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& x) {
    context->save_for_backward({x});
    return x * x;
  }
  static Tensors backward(torch::autograd::AutogradContext* context, const Tensors& gradients) {
    const at::AutoDispatchBelowADInplaceOrView below;
    return {context->get_saved_variables()[0] * 2 * gradients[0]};
  }
};

TEST(Recompute, RunsTheFunctionWithAutogradWhereItsBackwardSwitchesThatOff) {
  Layers layers;
  const auto function = [&](const at::Tensor& t) {
    return Square::apply(layers.one->forward(t).sin());
  };
  expect_same([&](bool on) { return call(on, function, layers.x).sum(); }, layers.leaves());
}

TEST(Recompute, Nests) {
  Layers layers;
  bool on = false;
  const auto inner = [&](const at::Tensor& t) {
    return at::dropout(layers.one->forward(t), 0.2, true).tanh();
  };
  const auto outer = [&](const at::Tensor& t) {
    return layers.two->forward(call(on, inner, call(on, inner, t).sigmoid())).exp();
  };
  const auto program = [&](bool recomputed) {
    on = recomputed;
    return call(on, outer, call(on, outer, layers.x)).square().mean();
  };
  expect_same(program, layers.leaves());
}

TEST(Recompute, TakesAndGivesSeveralTensors) {
  Layers layers;
  const auto mask = torch::rand({5, 8}) > 0.5;
  const auto function = [&](const Tensors& in) {
    const auto y = layers.one->forward(in[0]);
    return Tensors{y.sigmoid(), y.masked_fill(in[1], 0.0).exp(), at::Tensor(), in[0]};
  };
  const auto program = [&](bool on) {
    const auto out =
        on ? recompute(function, {layers.x, mask, at::Tensor()}) : function({layers.x, mask});
    EXPECT_FALSE(out[2].defined());
    return (layers.two->forward(out[0]) * out[1]).mean() + out[3].square().sum();
  };
  expect_same(program, layers.leaves());

  const auto one = [&](const Tensors& in) { return layers.one->forward(in[0]); };
  const at::Tensor y = recompute(one, Tensors{layers.x});
  EXPECT_EQ(y.sizes(), layers.x.sizes());
}

TEST(Recompute, ServesBackwardOfOneOfSeveralOutputs) {
  Layers layers;
  const auto out = recompute(
      [&](const Tensors& in) {
        const auto y = layers.one->forward(in[0]);
        return Tensors{y.sigmoid(), y.exp()};
      },
      Tensors{layers.x});
  const auto first = torch::autograd::grad({out[0].sum()}, {layers.x}, {}, true)[0];
  const auto second = torch::autograd::grad({out[1].sum()}, {layers.x}, {}, true)[0];
  const auto y = layers.one->forward(layers.x);
  expect_same_bits(first, torch::autograd::grad({y.sigmoid().sum()}, {layers.x}, {}, true)[0]);
  expect_same_bits(second, torch::autograd::grad({y.exp().sum()}, {layers.x})[0]);
}

TEST(Recompute, ServesRetainedGraphsAndGradientsOfGradients) {
  Layers layers;
  for (const bool twice : {false, true}) {
    const auto program = [&](bool on) {
      const auto y = call(
          on, [&](const at::Tensor& t) { return layers.one->forward(t).tanh(); }, layers.x);
      if (twice) y.sum().backward({}, /*retain_graph=*/true);
      const auto g = torch::autograd::grad({y.square().sum()}, {layers.x}, {}, true, true)[0];
      return g.square().sum();
    };
    expect_same(program, layers.leaves());
  }
}

TEST(Recompute, ServesABackwardWithinTheFunction) {
  Layers layers;
  const auto program = [&](bool on) {
    const auto penalty = [&](const at::Tensor& t) {
      const auto y = layers.one->forward(t).tanh();
      const auto g = torch::autograd::grad({y.sum()}, {t}, {}, true, true)[0];
      return g.square() + y;
    };
    return call(on, penalty, layers.x).sum();
  };
  expect_same(program, layers.leaves());
}

TEST(Recompute, HasTheBitsOfAccumulatedGradients) {
  Layers layers;
  const auto program = [&](bool on) {
    for (const double scale : {1.0, 0.1, 3.7}) (layers.loss(on) * scale).backward();
    return layers.loss(on);
  };
  expect_same(program, layers.leaves());
}

// pytorch/pytorch 141896 and 193338: a weight is cast before the function, or in another one, and
// found in the cache there, but not in the second run.
TEST(Recompute, UsesAWeightOfTheCacheMoreThanOnce) {
  const auto w = torch::randn({64, 64}).mul_(0.1).requires_grad_();
  const auto x = torch::randn({4, 64}).requires_grad_();
  const auto twice = [&](const at::Tensor& t) {
    return at::linear(at::linear(t, w).relu(), w).relu();
  };
  for (const auto mode : {weights::Mode::keep, weights::Mode::region, weights::Mode::off})
    for (const bool before : {false, true})
      for (const auto dtype : {torch::kBFloat16, torch::kHalf}) {
        SCOPED_TRACE(testing::Message() << int(mode) << before << dtype);
        const auto was = weights::mode();
        weights::set_mode(mode);
        const auto program = [&](bool on) {
          const Autocast region(torch::kCPU, dtype);
          if (before) {
            const at::NoGradGuard no_grad;
            at::linear(x, w);
          }
          const auto y = before ? at::linear(x, w) : x;
          return call(on, twice, call(on, twice, y)).to(torch::kFloat).square().mean();
        };
        expect_same(program, {w, x});
        weights::set_mode(was);
      }
}

TEST(Recompute, TakesGradientsIn16BitsAsThePlainRun) {
  Layers layers;
  const auto train = [&](bool on) {
    Layers mine;
    std::vector<at::Tensor> parameters = mine.one->parameters();
    for (const auto& p : mine.two->parameters()) parameters.push_back(p);
    optim::SGD sgd(parameters, optim::SGDOptions(0.1).momentum(0.9));
    Tensors seen;
    for (int step = 0; step < 4; ++step) {
      sgd.zero_grad();
      at::Tensor loss;
      {
        const Autocast region(torch::kCPU, torch::kBFloat16);
        loss = mine.loss(on);
      }
      loss.backward();
      for (const auto& p : parameters) seen.push_back(p.grad().clone());
      sgd.step();
    }
    for (const auto& p : parameters) seen.push_back(p.detach().clone());
    return seen;
  };
  const auto want = train(false), got = train(true);
  for (std::size_t i = 0; i < want.size(); ++i) expect_same_bits(got[i], want[i]);
}

TEST(Recompute, UpdatesRunningStatisticsOnce) {
  const auto train = [](bool on) {
    torch::manual_seed(4);
    torch::nn::Sequential layers(
        torch::nn::Conv2d(torch::nn::Conv2dOptions(3, 4, 3).bias(false)), torch::nn::BatchNorm2d(4),
        torch::nn::ReLU(torch::nn::ReLUOptions().inplace(true)),
        torch::nn::BatchNorm2d(torch::nn::BatchNorm2dOptions(4).momentum(std::nullopt)),
        torch::nn::InstanceNorm2d(
            torch::nn::InstanceNorm2dOptions(4).affine(true).track_running_stats(true)));
    const auto x = torch::randn({2, 3, 6, 6}).requires_grad_();
    for (int step = 0; step < 3; ++step)
      call(
          on, [&](const at::Tensor& t) { return layers->forward(t); }, x)
          .square()
          .sum()
          .backward();
    Tensors all{x.grad()};
    for (const auto& buffer : layers->buffers()) all.push_back(buffer);
    for (const auto& parameter : layers->parameters()) all.push_back(parameter.grad());
    for (const auto& buffer : layers->buffers())
      all.push_back(torch::tensor(int64_t(buffer._version())));
    return all;
  };
  const auto want = train(false), got = train(true);
  ASSERT_EQ(got.size(), want.size());
  for (std::size_t i = 0; i < want.size(); ++i) {
    SCOPED_TRACE(i);
    expect_same_bits(got[i], want[i]);
  }
}

TEST(Recompute, WritesNothingFromOutsideTwice) {
  auto counter = torch::zeros({}, torch::kLong), log = torch::zeros({5, 8});
  const auto x = torch::randn({5, 8}).requires_grad_();
  const auto function = [&](const at::Tensor& t) {
    counter += 1;
    counter *= 2;
    auto y = t * 2;
    y.mul_(3);  // of its own
    at::Tensor constant;
    {
      const at::NoGradGuard no_grad;
      log.view({-1}).add_(y.view({-1}));
      auto scratch = torch::empty({5, 8});
      scratch.copy_(y).mul_(0.5);
      constant = scratch;
    }
    return (y + constant).exp();
  };
  const auto y = recompute(function, x);
  const auto logged = log.clone();
  y.sum().backward();
  EXPECT_EQ(counter.item<int64_t>(), 2);
  EXPECT_EQ(counter._version(), 2);
  expect_same_bits(log, logged);
  expect_same_bits(x.grad(), y.detach() * 6);
}

TEST(Recompute, RefusesAWeightThatWasWrittenInBetween) {
  Layers layers;
  for (const bool in_region : {false, true})
    for (const auto* which : {"weight", "bias"}) {
      SCOPED_TRACE(testing::Message() << in_region << which);
      at::Tensor loss;
      {
        std::optional<Autocast> region;
        if (in_region) region.emplace(torch::kCPU, torch::kBFloat16);
        loss = layers.loss(true);
      }
      {
        const at::NoGradGuard no_grad;
        layers.one->named_parameters()[std::string("0.") + which].add_(1);
      }
      EXPECT_THAT([&] { loss.backward(); }, testing::ThrowsMessage<c10::Error>(HasSubstr(
                                                "modified by an inplace operation: a weight")));
    }
}

TEST(Recompute, RefusesAFrozenWeightAndAnInputThatWereWrittenInBetween) {
  auto frozen = torch::randn({8, 8}), x = torch::randn({5, 8}).requires_grad_(), y = x * 1;
  const auto function = [&](const at::Tensor& t) { return at::linear(t, frozen).exp(); };
  auto z = recompute(function, y);
  frozen.add_(1);
  EXPECT_THAT([&] { z.sum().backward(); },
              testing::ThrowsMessage<c10::Error>(HasSubstr("modified by an inplace operation")));
  z = recompute(function, y);
  y.add_(1);
  EXPECT_THAT([&] { z.sum().backward(); },
              testing::ThrowsMessage<c10::Error>(HasSubstr("modified by an inplace operation")));
}

TEST(Recompute, RefusesAFunctionThatWritesToItsInputOrItsOwnSavedTensors) {
  const auto x = torch::randn({5, 8}).requires_grad_();
  EXPECT_THAT([&] { recompute([](at::Tensor t) { return t.relu_().exp(); }, x * 1); },
              testing::ThrowsMessage<UsageError>(HasSubstr("[recompute.recompute]")));
  const auto y = recompute(
      [](const at::Tensor& t) {
        auto saved = t.exp();
        saved.add_(1);
        return saved * saved.sigmoid();
      },
      x);
  EXPECT_THAT([&] { y.sum().backward(); },
              testing::ThrowsMessage<c10::Error>(HasSubstr("a tensor that the function made")));
}

TEST(Recompute, RefusesAFunctionThatDoesOtherThings) {
  const auto x = torch::randn({5, 8}).requires_grad_();
  int runs = 0;
  const auto by_run = [&](auto first, auto second) {
    runs = 0;
    return recompute(
        [&, first, second](const at::Tensor& t) { return runs++ ? second(t) : first(t); }, x,
        {.early_stop = false});
  };
  const auto more = [](const at::Tensor& t) { return t.exp().sin().cos(); };
  const auto less = [](const at::Tensor& t) { return t.exp(); };
  const auto other = [](const at::Tensor& t) { return t.narrow(0, 0, 2).exp().sin().cos(); };
  const auto wide = [](const at::Tensor& t) { return t.to(torch::kDouble).exp().sin().cos(); };
  EXPECT_THAT([&] { by_run(more, less).sum().backward(); },
              testing::ThrowsMessage<UsageError>(HasSubstr(
                  "another number of tensors when it was run again; seen: 1; accepted: 3")));
  EXPECT_THAT([&] { by_run(less, more).sum().backward(); },
              testing::ThrowsMessage<UsageError>(HasSubstr("seen: 3; accepted: 1")));
  EXPECT_THAT([&] { by_run(more, other).sum().backward(); },
              testing::ThrowsMessage<UsageError>(
                  HasSubstr("number 0 of those that backward needs; seen: Float (2, 8) on cpu; "
                            "accepted: Float (5, 8) on cpu")));
  EXPECT_THAT([&] { by_run(more, wide).sum().backward(); },
              testing::ThrowsMessage<UsageError>(HasSubstr("Double")));
}

TEST(Recompute, PassesAnExceptionOfTheFunctionOn) {
  const auto x = torch::randn({5, 8}).requires_grad_();
  int runs = 0, fails_in = 1;
  const auto function = [&](const at::Tensor& t) {
    const auto y = t.exp();
    if (++runs == fails_in) throw std::out_of_range("of the user's own");
    return y.sin();
  };
  EXPECT_THROW(recompute(function, x), std::out_of_range);
  runs = 0, fails_in = 2;
  auto y = recompute(function, x);
  EXPECT_THROW(y.sum().backward({}, true), std::out_of_range);
  EXPECT_FALSE(is_recomputing());
  y.sum().backward();  // the third run
  expect_same_bits(x.grad(), x.detach().exp() * x.detach().exp().cos());
  EXPECT_TRUE(torch::autograd::grad({(x * x).sum()}, {x})[0].equal(x.detach() * 2)) << "no hooks";
}

TEST(Recompute, RunsAgainOnlyWhereGradientsAreWanted) {
  int runs = 0;
  bool second = false;
  const auto function = [&](const at::Tensor& t) {
    ++runs;
    second = is_recomputing();
    return t.exp();
  };
  const auto x = torch::randn({5, 8});
  EXPECT_FALSE(recompute(function, x).requires_grad());
  EXPECT_EQ(runs, 1);
  auto leaf = x.clone().requires_grad_();
  {
    const at::NoGradGuard no_grad;
    EXPECT_FALSE(recompute(function, leaf).requires_grad());
  }
  EXPECT_EQ(runs, 2);
  const auto y = recompute(function, leaf);
  EXPECT_FALSE(second);
  y.sum().backward();
  EXPECT_EQ(runs, 4);
  EXPECT_TRUE(second);
  EXPECT_FALSE(is_recomputing());
  expect_same_bits(leaf.grad(), y.detach());
}

TEST(Recompute, GivesGradientsToWeightsWhereNoInputNeedsOne) {
  Layers layers;
  layers.x = torch::randn({5, 8});
  auto leaves = layers.leaves();
  leaves.pop_back();
  expect_same([&](bool on) { return layers.loss(on); }, leaves);
}

TEST(Recompute, StopsEarly) {
  const auto x = torch::randn({5, 8}).requires_grad_();
  for (const bool early : {true, false}) {
    int ends = 0;
    const auto y = recompute(
        [&](const at::Tensor& t) {
          const auto z = t.sin().cos() + 1;
          ++ends;
          return z;
        },
        x, {.early_stop = early});
    y.sum().backward();
    EXPECT_EQ(ends, early ? 1 : 2);
  }
}

TEST(Recompute, RunsAFunctionThatLetsNoExceptionPassToItsEnd) {
  const auto x = torch::randn({5, 8}).requires_grad_();
  const auto one = [](const at::Tensor& t) noexcept { return t.sin().cos(); };
  const auto many = [](const Tensors& in) noexcept { return in[0].sin().cos(); };
  const auto lists = [](const Tensors& in) noexcept { return Tensors{in[0].sin().cos()}; };
  const auto y = recompute(one, x) + recompute(many, Tensors{x}) + recompute(lists, Tensors{x})[0];
  y.sum().backward();
  const auto plain = x.detach().requires_grad_();
  (one(plain) + one(plain) + one(plain)).sum().backward();
  expect_same_bits(x.grad(), plain.grad());
}

// Back in the state that it has found, so that it seems to have drawn nothing.
TEST(Recompute, DrawsTheSameWhereTheFunctionSeedsTheGeneratorItself) {
  Layers layers;
  const auto seeded = [&](const at::Tensor& t) {
    const auto y = at::dropout(layers.one->forward(t), 0.5, true).exp();
    torch::manual_seed(3);
    return y;
  };
  const auto program = [&](bool on) {
    const auto y = call(on, seeded, layers.x);
    return at::dropout(y, 0.5, true).square().mean() + torch::rand({}) * 0;
  };
  expect_same(program, layers.leaves());
}

TEST(Recompute, EndsWithoutTheFunctionsConsent) {
  const auto x = torch::randn({5, 8}).requires_grad_();
  const auto y = recompute(
      [](const at::Tensor& t) {
        try {
          return t.sin().cos().exp();
        } catch (...) {
          return t.exp().exp().exp();
        }
      },
      x);
  y.sum().backward();
  const auto plain = x.detach().requires_grad_();
  plain.sin().cos().exp().sum().backward();
  expect_same_bits(x.grad(), plain.grad());
}

TEST(Recompute, ServesThreads) {
  Layers layers;
  const auto want = outcome_of([&](bool on) { return layers.loss(on); }, layers.leaves(), false);
  std::vector<std::thread> threads;
  std::vector<Tensors> got(4);
  for (auto& mine : got)
    threads.emplace_back([&] {
      for (int i = 0; i < 5; ++i)
        mine = torch::autograd::grad({layers.loss(true)}, layers.leaves());
    });
  for (auto& thread : threads) thread.join();
  for (const auto& mine : got)
    for (std::size_t i = 0; i < mine.size(); ++i) expect_same_bits(mine[i], want.gradients[i]);
}

}  // namespace
}  // namespace demi
