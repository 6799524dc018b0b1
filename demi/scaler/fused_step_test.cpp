// GradScaler with demi's optimizers, and the step of the paper written out.
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cmath>
#include <memory>
#include <vector>

#include "demi/autocast/autocast.h"
#include "demi/core/error.h"
#include "demi/optim/adamw.h"
#include "demi/optim/clip.h"
#include "demi/optim/sgd.h"
#include "demi/optim/testing.h"
#include "demi/scaler/grad_scaler.h"

namespace demi {
namespace {

using optim::testing::kInf;
using optim::testing::parameter;

at::Tensor fixed(at::IntArrayRef shape, double seed) {
  return parameter(shape, at::kFloat, seed).detach();
}

// Micikevicius et al. 2018, "Mixed precision training", figure 1 and sections 3.1 and 3.2, for a
// layer y = x W^T.
at::Tensor eight_steps_written_out(at::Tensor master, const at::Tensor& x, const at::Tensor& y,
                                   at::ScalarType half, float scale, double lr) {
  const at::Tensor weight = master.to(half).requires_grad_();  // 1: 16-bit copy of the fp32 weights
  const at::Tensor output =
      torch::nn::functional::linear(x.to(half), weight);   // 2: forward in 16 bits
  const at::Tensor prediction = output.to(at::kFloat);     // 3: prediction to fp32
  const at::Tensor loss = torch::mse_loss(prediction, y);  // 4: loss in fp32 ...
  const at::Tensor scaled = loss * scale;                  //    ... times S
  // 5: the scaled loss stays fp32 (65,536 is Inf in fp16); its gradient enters 16 bits at the first
  // 16-bit op
  scaled.backward();                                                 // 6: backward in 16 bits
  const at::Tensor gradient = weight.grad().to(at::kFloat) / scale;  // 7: gradient to fp32, / S
  return master - lr * gradient;                                     // 8: fp32 weights updated
}

TEST(EightSteps, TheFusedStepGivesThemBitForBit) {
  for (const auto half : {at::kBFloat16, at::kHalf}) {
    const at::Tensor w = parameter({6, 8});
    at::Tensor master = w.detach().clone();
    optim::SGD sgd({w}, optim::SGDOptions(0.125));
    GradScaler scaler(GradScalerOptions{.init_scale = 4096});
    for (int step = 0; step < 10; ++step) {
      const at::Tensor x = fixed({5, 8}, step), y = fixed({5, 6}, step + 0.5);
      sgd.zero_grad();
      at::Tensor output;
      {
        Autocast region(torch::kCPU, half);
        output = torch::nn::functional::linear(x, w);
      }
      scaler.scale(torch::mse_loss(output.to(at::kFloat), y)).backward();
      scaler.step(sgd);
      scaler.update();
      master = eight_steps_written_out(master, x, y, half, 4096, 0.125);
      ASSERT_TRUE(at::equal(w.detach(), master)) << half << " step " << step;
    }
  }
}

TEST(FusedStep, IsThatOfTorchWithTheSameGradients) {
  const at::Tensor p = parameter({7}), q = parameter({7});
  optim::AdamW mine({p}, optim::AdamWOptions(0.01));
  torch::optim::AdamW theirs({q}, torch::optim::AdamWOptions(0.01));
  GradScaler a(GradScalerOptions{.growth_interval = 2}), b(GradScalerOptions{.growth_interval = 2});
  for (int step = 0; step < 12; ++step) {
    const float spoiled = step % 5 == 4 ? kInf : 1.F;
    for (auto& [scaler, optimizer, x] :
         {std::tuple<GradScaler*, torch::optim::Optimizer*, at::Tensor>(&a, &mine, p),
          {&b, &theirs, q}}) {
      optimizer->zero_grad();
      scaler->scale(((x * x).sum() * spoiled)).backward();
      if (step % 2) {
        scaler->unscale_(*optimizer);
        optim::clip_grad_norm_({x}, 0.5);
      }
      const StepResult result = scaler->step(*optimizer);
      EXPECT_EQ(result.skipped(), step % 5 == 4) << step;
      EXPECT_EQ(result.optimizer(), optimizer);
      scaler->update();
    }
    ASSERT_EQ(a.get_scale(), b.get_scale()) << step;
    ASSERT_TRUE(at::allclose(p, q, 0, 1e-6)) << step;
  }
}

// The step that is taken is the same optimizer's without a scaler; the rule of the scale sees the
// Inf all the same.
TEST(FusedStep, WithoutSkippingAnInfIsAppliedAndTheScaleBacksOff) {
  for (const bool own : {true, false})
    for (const bool unscales : {true, false}) {
      SCOPED_TRACE(::testing::Message() << "own " << own << " unscales " << unscales);
      const at::Tensor p = parameter({3});
      const auto sgd = [&]() -> std::unique_ptr<torch::optim::Optimizer> {
        if (own) return std::make_unique<optim::SGD>(std::vector{p}, optim::SGDOptions(1));
        return std::make_unique<torch::optim::SGD>(std::vector{p}, torch::optim::SGDOptions(1));
      }();
      GradScaler scaler(GradScalerOptions{.init_scale = 4, .skip_nonfinite = false});
      const at::Tensor before = p.detach().clone();
      scaler.scale(torch::zeros({}));
      p.mutable_grad() = torch::tensor({4.F, kInf, -8.F});
      if (unscales) {
        scaler.unscale_(*sgd);
        optim::clip_grad_value_({p}, 1.5);
      }
      const StepResult result = scaler.step(*sgd);
      scaler.update();
      EXPECT_FALSE(result.skipped());
      EXPECT_EQ(scaler.get_scale(), 2);
      const float least = unscales ? -1.5F : -2.F;
      EXPECT_EQ(p[0].item<float>(), (before[0] - 1).item<float>());
      EXPECT_EQ(p[2].item<float>(), (before[2] - least).item<float>());
      EXPECT_EQ(p[1].item<float>(), unscales ? (before[1] - 1.5).item<float>() : -kInf);
      p.mutable_grad() = torch::ones(3);
      EXPECT_FALSE(scaler.step(*sgd).skipped());
      scaler.update();
      EXPECT_EQ(scaler.get_scale(), 2);
    }
}

// What the caller holds together is taken together.
TEST(FusedStep, WithoutSkippingOptimizersThatDecideTogetherAllStep) {
  const at::Tensor p = parameter({2}), q = parameter({2});
  optim::SGD first({p}, optim::SGDOptions(1));
  torch::optim::SGD second({q}, torch::optim::SGDOptions(1));
  GradScaler scaler(GradScalerOptions{.skip_nonfinite = false});
  scaler.scale(torch::zeros({}));
  p.mutable_grad() = torch::full({2}, 65536.F);
  q.mutable_grad() = torch::full({2}, kInf);
  for (const auto& result : scaler.step({&first, &second})) EXPECT_FALSE(result.skipped());
  EXPECT_TRUE(at::equal(p.detach(), parameter({2}).detach() - 1));
  EXPECT_TRUE(at::equal(q.detach(), torch::full({2}, -kInf)));
}

TEST(FusedStep, SeveralOptimizersEachDecideOrDecideTogether) {
  const at::Tensor p = parameter({2}), q = parameter({2}), r = parameter({2});
  optim::SGD first({p}, optim::SGDOptions(1)), second({q}, optim::SGDOptions(1));
  torch::optim::SGD foreign({r}, torch::optim::SGDOptions(1));
  GradScaler scaler;
  const auto gradients = [&] {
    scaler.scale(torch::zeros({}));
    for (const auto& x : {p, q, r}) x.mutable_grad() = torch::ones(2);
    q.grad()[1] = kInf;
  };
  gradients();
  for (const auto& result : scaler.step({&first, &second, &foreign})) EXPECT_TRUE(result.skipped());
  scaler.update();
  for (const auto& x : {p, q, r}) EXPECT_TRUE(at::equal(x, parameter({2})));
  EXPECT_EQ(scaler.get_scale(), 32768);
  gradients();
  EXPECT_FALSE(scaler.step(first).skipped());
  EXPECT_TRUE(scaler.step(second).skipped());
  EXPECT_FALSE(scaler.step(foreign).skipped());
  scaler.update();
  EXPECT_EQ(scaler.get_scale(), 16384);
  EXPECT_FALSE(at::equal(p, parameter({2})));
  EXPECT_TRUE(at::equal(q, parameter({2})));
}

TEST(FusedStep, AClosureRunsOnceAndItsLossComesBack) {
  const at::Tensor p = parameter({2});
  optim::SGD sgd({p}, optim::SGDOptions(1));
  GradScaler scaler;
  const StepResult result = scaler.step(sgd, [&] {
    const at::Tensor loss = p.sum();
    scaler.scale(loss).backward();
    return loss;
  });
  EXPECT_FALSE(result.skipped());
  EXPECT_TRUE(result.loss().defined());
  EXPECT_TRUE(at::equal(p.detach(), parameter({2}).detach() - 1));
}

// PyTorch's unscale_ divides .grad; demi's own step divides on the way and leaves .grad alone.
TEST(FusedStep, OnlyUnscaleShowsInTheFp32Gradient) {
  for (const bool asked : {true, false}) {
    const at::Tensor p = parameter({3}), before = p.detach().clone();
    optim::SGD sgd({p}, optim::SGDOptions(0.5));
    GradScaler scaler(GradScalerOptions{.init_scale = 1024});
    scaler.scale(torch::zeros({}));
    const at::Tensor g = torch::tensor({3.F, -4.F, 0.25F});
    p.mutable_grad() = g * 1024;
    if (asked) scaler.unscale_(sgd);
    EXPECT_TRUE(at::equal(p.grad(), asked ? g : g * 1024)) << asked;
    const StepResult result = scaler.step(sgd);
    EXPECT_TRUE(at::equal(p.grad(), asked ? g : g * 1024)) << asked;
    EXPECT_TRUE(at::equal(p.detach(), before - 0.5 * g)) << asked;  // divided once either way
    EXPECT_FLOAT_EQ(result.grad_norm().value(), g.norm().item<float>());
  }
}

TEST(FusedStep, AnOverflowInAClosureChangesNothingAndStillGivesTheLoss) {
  const at::Tensor p = parameter({2});
  optim::AdamW adamw({p}, optim::AdamWOptions(0.1));
  GradScaler scaler;
  int calls = 0;
  float spoiled = 1;
  const auto closure = [&] {
    ++calls;
    adamw.zero_grad();
    const at::Tensor loss = p.sum() * 3;
    scaler.scale(loss * spoiled).backward();
    return loss;
  };
  scaler.step(adamw, closure);
  scaler.update();
  const at::Tensor before = p.detach().clone();
  const auto state = adamw.state_tensors();
  spoiled = kInf;
  const at::NoGradGuard no_grad;  // as torch.optim: the closure runs with gradients all the same
  const StepResult result = scaler.step(adamw, closure);
  scaler.update();
  EXPECT_EQ(calls, 2);
  EXPECT_TRUE(result.skipped());
  EXPECT_TRUE(at::equal(result.loss(), before.sum() * 3));
  EXPECT_TRUE(at::equal(p.detach(), before));
  for (const auto& [name, tensor] : adamw.state_tensors())
    EXPECT_TRUE(at::equal(tensor, state.at(name))) << name;
  EXPECT_EQ(scaler.get_scale(), 32768);
}

TEST(FusedStep, ADisabledScalerHandsTheClosureOn) {
  const at::Tensor p = parameter({2}), before = p.detach().clone();
  optim::SGD sgd({p}, optim::SGDOptions(1));
  GradScaler scaler(GradScalerOptions{.enabled = false});
  const StepResult result = scaler.step(sgd, [&] {
    const at::Tensor loss = p.sum();
    scaler.scale(loss).backward();
    return loss;
  });
  EXPECT_TRUE(at::equal(result.loss(), before.sum()));
  EXPECT_EQ(result.scale(), 1);
  EXPECT_TRUE(at::equal(p.detach(), before - 1));
}

// 2^12 x 4 = 16,384 is the largest power of two under 65,504 / 2; of 1 alone it would be 2^14.
TEST(FusedStep, AmaxIsTheGreatestOfAllOptimizers) {
  for (const bool first_is_greater : {true, false}) {
    for (const bool foreign : {true, false}) {
      const at::Tensor p = parameter({1}), q = parameter({1});
      optim::SGD own({p}, optim::SGDOptions(0));
      std::unique_ptr<torch::optim::Optimizer> other;
      if (foreign)
        other = std::make_unique<torch::optim::SGD>(std::vector{q}, torch::optim::SGDOptions(0));
      else
        other = std::make_unique<optim::SGD>(std::vector{q}, optim::SGDOptions(0));
      GradScaler scaler(GradScalerOptions{.init_scale = 2, .mode = ScaleMode::kAmax});
      scaler.scale(torch::zeros({}));
      p.mutable_grad() = torch::full({1}, first_is_greater ? -8.F : 2.F);
      q.mutable_grad() = torch::full({1}, first_is_greater ? 2.F : -8.F);
      scaler.step(own);
      scaler.step(*other);
      scaler.update();
      EXPECT_EQ(scaler.get_scale(), 4096) << first_is_greater << foreign;
    }
  }
}

// One gradient, two optimizers: divided once for each of them, or refused; never twice.
TEST(FusedStep, AParameterOfTwoOptimizersIsNeverDividedTwice) {
  const at::Tensor p = parameter({2}), start = p.detach().clone();
  optim::SGD own({p}, optim::SGDOptions(1)), second({p}, optim::SGDOptions(1));
  torch::optim::SGD foreign({p}, torch::optim::SGDOptions(1)),
      other({p}, torch::optim::SGDOptions(1));
  const auto fresh = [&] {
    const at::NoGradGuard no_grad;
    p.copy_(start);
    p.mutable_grad() = torch::full({2}, 8.F);
    GradScaler scaler(GradScalerOptions{.init_scale = 8});
    scaler.scale(torch::zeros({}));
    return scaler;
  };
  GradScaler a = fresh();  // neither divides in place
  a.step(own);
  a.step(second);
  EXPECT_TRUE(at::equal(p.detach(), start - 2));
  GradScaler b = fresh();  // the first has stepped before the second divides
  b.step(own);
  b.step(foreign);
  EXPECT_TRUE(at::equal(p.detach(), start - 2));
  for (torch::optim::Optimizer* later :
       std::vector<torch::optim::Optimizer*>{&own, &second, &other}) {
    GradScaler c = fresh();
    c.step(foreign);
    EXPECT_THROW(c.step(*later), UsageError);
    EXPECT_TRUE(at::equal(p.detach(), start - 1));
  }
  GradScaler d = fresh();
  d.unscale_(own);
  EXPECT_THROW(d.unscale_(second), UsageError);
  EXPECT_THROW(d.step(foreign), UsageError);
  d.step(own);
  EXPECT_TRUE(at::equal(p.detach(), start - 1));
  GradScaler e = fresh();
  EXPECT_THROW(e.step({&own, &foreign}), UsageError);
  EXPECT_TRUE(at::equal(p.detach(), start));
  GradScaler f = fresh();  // new gradients in between
  f.step(foreign);
  p.mutable_grad() = torch::full({2}, 16.F);
  f.step(other);
  EXPECT_TRUE(at::equal(p.detach(), start - 3));
  GradScaler g = fresh();  // or zeroed and added up anew in the same memory
  g.step(foreign);
  p.grad().zero_().add_(16);
  g.step(other);
  EXPECT_TRUE(at::equal(p.detach(), start - 3));
}

TEST(FusedStep, SixteenBitGradientsOfTwoDemiOptimizersAreNotDividedInPlace) {
  const at::Tensor p = parameter({2}), start = p.detach().clone();
  optim::SGD first({p}, optim::SGDOptions(1)), second({p}, optim::SGDOptions(1));
  p.mutable_grad() = torch::full({2}, 8.F, at::kBFloat16);
  GradScaler scaler(GradScalerOptions{.init_scale = 8});
  scaler.scale(torch::zeros({}));
  scaler.unscale_(first);
  scaler.unscale_(second);
  scaler.step(first);
  scaler.step(second);
  EXPECT_TRUE(at::equal(p.detach(), start - 2));
}

TEST(FusedStep, AccumulatesAWindowInFp32UnderOneScale) {
  const at::Tensor p = parameter({3}), q = parameter({3});
  optim::SGD sgd({p}, optim::SGDOptions(1));
  GradScaler scaler(GradScalerOptions{.init_scale = 64});
  at::Tensor sum = torch::zeros(3);
  for (int micro = 0; micro < 16; ++micro) {
    const at::Tensor x = fixed({3}, micro);
    {
      Autocast region(torch::kCPU, torch::kBFloat16);
      scaler.scale((torch::mm(p.unsqueeze(0), x.unsqueeze(1)).to(at::kFloat)).sum()).backward();
    }
    sum += x.to(at::kBFloat16).to(at::kFloat);
  }
  EXPECT_EQ(p.grad().scalar_type(), at::kFloat);
  scaler.step(sgd);
  EXPECT_TRUE(at::allclose(p.detach(), q.detach() - sum, 0, 1e-6));
}

TEST(FusedStep, AmaxComesFromThePassThatLooks) {
  const at::Tensor p = parameter({2});
  optim::SGD sgd({p}, optim::SGDOptions(0));
  GradScaler scaler(GradScalerOptions{.init_scale = 4, .mode = ScaleMode::kAmax});
  scaler.scale(torch::zeros({}));
  p.mutable_grad() = torch::tensor({4.F, -2.F});
  scaler.step(sgd);
  scaler.update();
  EXPECT_EQ(scaler.get_scale(), 16384);
}

TEST(FusedStep, NoGradientIsAnError) {
  const at::Tensor p = parameter({2});
  optim::SGD sgd({p}, optim::SGDOptions(1));
  GradScaler scaler;
  scaler.scale(torch::zeros({}));
  EXPECT_ANY_THROW(scaler.step(sgd));
}

}  // namespace
}  // namespace demi
