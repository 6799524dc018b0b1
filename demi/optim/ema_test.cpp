#include "demi/optim/ema.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cmath>

#include "demi/core/error.h"
#include "demi/optim/step_result_testing.h"

namespace demi {
namespace {

using optim::testing::kSkipped;
using optim::testing::kTaken;
using optim::testing::on_device;

TEST(EMA, FollowsTheFormulaAndTheSkip) {
  torch::nn::Linear model(3, 2);
  const at::NoGradGuard no_grad;
  EMA ema(*model, 0.9);
  at::Tensor expected = model->weight.detach().to(at::kDouble);
  for (int step = 0; step < 10; ++step) {
    model->weight.add_(0.1 * step);
    ema.update(step % 3 == 2 ? kSkipped : kTaken);
    if (step % 3 != 2) expected = expected * 0.9 + model->weight.to(at::kDouble) * 0.1;
  }
  EXPECT_TRUE(at::allclose(ema.averages().at("weight").to(at::kDouble), expected, 0, 1e-6));
}

TEST(EMA, SwapsForEvaluationAndBackBitForBit) {
  for (const auto dtype : {at::kFloat, at::kBFloat16}) {
    torch::nn::Linear model(3, 2);
    model->to(dtype);
    const at::NoGradGuard no_grad;
    EMA ema(*model, 0.99);
    model->weight.fill_(1);
    ema.update();
    const at::Tensor average = ema.averages().at("weight").clone();
    EXPECT_EQ(average.scalar_type(), at::kFloat);
    ema.swap();
    EXPECT_TRUE(at::equal(model->weight, average.to(dtype)));
    ema.swap();
    EXPECT_TRUE(at::equal(model->weight, torch::ones({2, 3}, dtype)));
    EXPECT_TRUE(at::equal(ema.averages().at("weight"), average));
  }
}

// Running statistics are averages already: they are taken over, not averaged again.
TEST(EMA, BuffersAreCopiedByAStepAndParkedByASwap) {
  torch::nn::BatchNorm1d model(2);
  const at::NoGradGuard no_grad;
  EMA ema(*model, 0.9);
  model->running_mean.fill_(4);
  model->num_batches_tracked.fill_(7);
  ema.update(kSkipped);
  EXPECT_TRUE(at::equal(ema.averages().at("running_mean"), torch::zeros(2)));
  ema.update(kTaken);
  EXPECT_TRUE(at::equal(ema.averages().at("running_mean"), torch::full({2}, 4.F)));
  EXPECT_EQ(ema.averages().at("num_batches_tracked").item<int64_t>(), 7);
  model->running_mean.fill_(5);
  model->num_batches_tracked.fill_(8);
  ema.swap();
  EXPECT_TRUE(at::equal(model->running_mean, torch::full({2}, 4.F)));
  EXPECT_EQ(model->num_batches_tracked.item<int64_t>(), 7);
  ema.swap();
  EXPECT_TRUE(at::equal(model->running_mean, torch::full({2}, 5.F)));
  EXPECT_EQ(model->num_batches_tracked.item<int64_t>(), 8);
  EXPECT_TRUE(at::equal(ema.averages().at("running_mean"), torch::full({2}, 4.F)));
}

TEST(EMA, EachSwapParksTheWeightsOfItsOwnTime) {
  torch::nn::Linear model(1, 1);
  const at::NoGradGuard no_grad;
  model->weight.fill_(2);
  EMA ema(*model, 1);  // the average stays 2
  for (const float weight : {3.F, 4.F}) {
    model->weight.fill_(weight);
    ema.swap();
    EXPECT_EQ(model->weight.item<float>(), 2);
    ema.swap();
    EXPECT_EQ(model->weight.item<float>(), weight);
  }
}

// A device's flag is not read: what a skipped step leaves is chosen there.
TEST(EMA, FollowsTheSkipOfADevice) {
  torch::nn::BatchNorm1d model(1);
  const at::NoGradGuard no_grad;
  EMA ema(*model, 0.5);
  model->weight.fill_(3);
  model->running_mean.fill_(3);
  ema.update(on_device(1));
  EXPECT_EQ(ema.averages().at("weight").item<float>(), 1);
  EXPECT_EQ(ema.averages().at("running_mean").item<float>(), 0);
  ema.update(on_device(0));
  EXPECT_EQ(ema.averages().at("weight").item<float>(), 2);
  EXPECT_EQ(ema.averages().at("running_mean").item<float>(), 3);
}

TEST(EMA, AveragesOfMoreOrFewerTensorsAreRefusedWhole) {
  torch::nn::Linear model(1, 1);
  EMA ema(*model);
  const auto copy = [&] {
    std::map<std::string, at::Tensor> all;
    for (const auto& [name, tensor] : ema.averages()) all[name] = torch::full_like(tensor, 9);
    return all;
  };
  auto more = copy(), fewer = copy();
  more["another"] = torch::zeros(1);
  fewer.erase("weight");
  EXPECT_THROW(ema.load(more), UsageError);
  EXPECT_THROW(ema.load(fewer), UsageError);
  EXPECT_THROW(EMA(*model, std::nan("")), UsageError);
  EXPECT_TRUE(at::equal(ema.averages().at("bias"), model->bias));
}

TEST(EMA, LoadsOnlyWhatFits) {
  torch::nn::BatchNorm1d model(2), other(3);
  EMA ema(*model), wrong(*other);
  EXPECT_THROW(ema.load(wrong.averages()), UsageError);
  EXPECT_THROW(EMA(*model, 1.1), UsageError);
  std::map<std::string, at::Tensor> saved;
  for (const auto& [name, tensor] : ema.averages()) saved[name] = tensor.clone();
  {
    const at::NoGradGuard no_grad;
    model->weight.fill_(7);
  }
  ema.update();
  ema.load(saved);
  EXPECT_TRUE(at::equal(ema.averages().at("weight"), torch::ones(2)));
}

TEST(EMA, FollowsAModuleThatMovesToAWiderDtype) {
  torch::nn::Linear module(torch::nn::LinearOptions(1, 1).bias(false));
  const at::Tensor weight = module->weight;
  EMA ema(*module, 0.5);
  module->to(torch::kDouble);
  const double third = 1.0 / 3;
  {
    const at::NoGradGuard no_grad;
    weight.fill_(third);
  }
  for (int i = 0; i < 60; ++i) ema.update();
  ema.swap();
  EXPECT_NEAR(weight.item<double>(), third, 1e-12);  // fp32 holds 8 digits
}

/// A Linear and a BatchNorm1d that stand in it twice, and a weight under two names.
struct Twice : torch::nn::Module {
  Twice() {
    for (const char* name : {"a", "b"}) register_module(std::string("linear_") + name, linear);
    for (const char* name : {"a", "b"}) register_module(std::string("norm_") + name, norm);
    tied = register_parameter("tied", torch::full({2}, 1.F));
    register_parameter("tied_too", tied);
  }
  torch::nn::Linear linear = torch::nn::Linear(2, 2);
  torch::nn::BatchNorm1d norm = torch::nn::BatchNorm1d(2);
  at::Tensor tied;
};

TEST(EMA, WhatStandsInTheModuleTwiceHasOneAverage) {
  Twice model;
  const at::NoGradGuard no_grad;
  for (const auto& p : model.parameters()) p.fill_(1);
  EMA ema(model, 0.75);
  for (const auto& p : model.parameters()) p.fill_(3);
  model.norm->running_mean.fill_(7);
  ema.update();  // 1 + 0.25 (3 - 1), once
  EXPECT_EQ(ema.averages().at("linear_a.weight")[0][0].item<float>(), 1.5);
  EXPECT_EQ(ema.averages().size(), 8U);  // two weights, two biases, three buffers, the tied one
  for (int round = 0; round < 2; ++round) {
    model.norm->running_mean.fill_(9);
    ema.swap();
    for (const auto& p : model.parameters()) EXPECT_TRUE(at::equal(p, torch::full_like(p, 1.5)));
    EXPECT_EQ(model.norm->running_mean[0].item<float>(), 7);
    ema.swap();
    for (const auto& p : model.parameters()) EXPECT_TRUE(at::equal(p, torch::full_like(p, 3)));
    EXPECT_EQ(model.norm->running_mean[0].item<float>(), 9);
  }
  // Files hold a tensor under one name of it, or under all, as demi once wrote them.
  std::map<std::string, at::Tensor> one, all;
  for (const auto& [name, average] : ema.averages()) one[name] = torch::full_like(average, 5);
  one["linear_b.weight"] = one.extract("linear_a.weight").mapped();
  ema.load(one);
  EXPECT_EQ(ema.averages().at("linear_a.weight")[1][1].item<float>(), 5);
  for (const auto& named : {model.named_parameters(), model.named_buffers()})
    for (const auto& item : named) all[item.key()] = torch::full_like(item.value(), 6);
  ema.load(all);
  EXPECT_EQ(ema.averages().at("linear_a.weight")[1][1].item<float>(), 6);
}

TEST(EMA, TensorsInTheSameMemoryComeBack) {
  torch::nn::Module model;
  at::Tensor whole = torch::arange(4.F);
  model.register_buffer("whole", whole);
  model.register_buffer("part", whole.slice(0, 1, 3));
  EMA ema(model);
  const at::NoGradGuard no_grad;
  whole.add_(10);
  ema.swap();
  EXPECT_TRUE(at::equal(whole, torch::arange(4.F)));
  ema.swap();
  EXPECT_TRUE(at::equal(whole, torch::arange(4.F) + 10));
}

TEST(EMA, SeveralOfOneModuleNest) {
  torch::nn::Linear model(1, 1);
  const at::NoGradGuard no_grad;
  model->weight.fill_(1);
  EMA a(*model, 1);
  model->weight.fill_(2);
  EMA b(*model, 1);
  model->weight.fill_(3);
  a.swap();
  b.swap();
  EXPECT_EQ(model->weight.item<float>(), 2);
  EXPECT_THROW(a.swap(), UsageError);  // b's averages stand there
  b.swap();
  a.swap();
  EXPECT_EQ(model->weight.item<float>(), 3);
}

TEST(EMA, TrainingOnTheAveragesIsNoticed) {
  torch::nn::Linear model(1, 1);
  const at::NoGradGuard no_grad;
  model->weight.fill_(1);
  EMA ema(*model, 1);
  model->weight.fill_(3);
  ema.swap();
  EXPECT_THROW(ema.update(), UsageError);
  EXPECT_THROW(ema.load(ema.averages()), UsageError);
  model->weight.add_(1);
  EXPECT_THROW(ema.swap(), UsageError);
  EXPECT_TRUE(ema.is_swapped());
  ema.restore();
  EXPECT_EQ(model->weight.item<float>(), 3);
  EXPECT_FALSE(ema.is_swapped());
  ema.restore();
  EXPECT_EQ(model->weight.item<float>(), 3);
}

TEST(EMA, TheWeightsComeBackAfterAnException) {
  torch::nn::Linear model(1, 1);
  const at::NoGradGuard no_grad;
  model->weight.fill_(1);
  EMA ema(*model, 1);
  model->weight.fill_(3);
  try {
    const EMA::InPlace averages(ema);
    EXPECT_EQ(model->weight.item<float>(), 1);
    EXPECT_THROW(EMA::InPlace{ema}, UsageError);
    throw std::runtime_error("in an evaluation");
  } catch (const std::runtime_error&) {
    EXPECT_EQ(model->weight.item<float>(), 3);
  }
}

TEST(EMA, OfSeveralOptimizersEachAverageFollowsItsOwn) {
  torch::nn::Sequential model(torch::nn::Linear(1, 1), torch::nn::Linear(1, 1),
                              torch::nn::BatchNorm1d(1));
  const at::NoGradGuard no_grad;
  torch::optim::SGD first(model[0]->parameters(), 1), second(model[1]->parameters(), 1);
  const auto result = [](const torch::optim::Optimizer& of, float found, bool device) {
    return device ? StepResult(&of, at::tensor({found, 1.F, 1.F}), at::Tensor())
                  : StepResult(&of, StepResult::Numbers{.found_inf = found}, {});
  };
  for (const bool device : {false, true}) {
    for (const auto& [skips_first, skips_second] :
         {std::pair(0, 0), std::pair(1, 0), std::pair(0, 1), std::pair(1, 1)}) {
      for (const auto& p : model->parameters()) p.fill_(0);
      EMA ema(*model, 0.5);
      for (const auto& p : model->parameters()) p.fill_(2);
      ema.update({result(first, static_cast<float>(skips_first), device),
                  result(second, static_cast<float>(skips_second), device)});
      const auto average = [&](const char* name) { return ema.averages().at(name).item<float>(); };
      EXPECT_EQ(average("0.weight"), skips_first ? 0 : 1);
      EXPECT_EQ(average("1.bias"), skips_second ? 0 : 1);
      EXPECT_EQ(average("2.weight"), skips_first && skips_second ? 0 : 1);  // of no optimizer
    }
  }
}

TEST(EMA, BeginsAnewAsTheWeightsAreThen) {
  torch::nn::BatchNorm1d model(2);
  const at::NoGradGuard no_grad;
  EMA ema(*model, 0.9);
  model->weight.fill_(3);
  model->running_mean.fill_(4);
  ema.swap();
  EXPECT_THROW(ema.restart(), UsageError);
  ema.swap();
  ema.restart();
  EXPECT_TRUE(at::equal(ema.averages().at("weight"), torch::full({2}, 3.F)));
  EXPECT_TRUE(at::equal(ema.averages().at("running_mean"), torch::full({2}, 4.F)));
  model->weight.fill_(13);
  ema.update();
  EXPECT_TRUE(at::allclose(ema.averages().at("weight"), torch::full({2}, 4.F)));  // 3 + 0.1 x 10
}

TEST(EMA, AModelWithoutTensorsTakesNoAverages) {
  torch::nn::Tanh model;
  EMA ema(*model);
  EXPECT_THROW(ema.load({{"weight", torch::zeros(1)}}), UsageError);
  EXPECT_NO_THROW(ema.load({}));
}

TEST(EMA, AParameterAndABufferOfOneNameAreRefused) {
  torch::nn::Linear model(1, 1);
  model->register_buffer("weight", torch::zeros(3));
  EXPECT_THROW(EMA{*model}, UsageError);
}

}  // namespace
}  // namespace demi
