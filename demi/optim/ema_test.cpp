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

}  // namespace
}  // namespace demi
