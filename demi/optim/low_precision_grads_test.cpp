// The dtype of .grad: FP32 as with torch::optim, or the 16 bits of backward where that is asked
// for; and FP32 in both for whoever looks at a gradient on its way.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cmath>
#include <functional>
#include <optional>

#include "demi/optim/sgd.h"
#include "demi/optim/testing.h"
#include "demi/step/pending_step.h"
#include "demi/weights/weights.h"

namespace demi::optim {
namespace {

using at::Tensor;
using testing::parameter;
using Tensors = std::vector<Tensor>;

constexpr StepOptions kNarrow{.low_precision_grads = true};

/// A use in 16 bits whose gradient is `factor` everywhere.
Tensor use(const Tensor& p, double factor, c10::ScalarType dtype = at::kBFloat16) {
  weights::enter_region();
  const Tensor low = weights::low_precision(p, dtype);
  const Tensor loss = (low * torch::full_like(low, factor)).sum().to(at::kFloat);
  weights::leave_region();
  return loss;
}

void run_both(const std::function<void(StepOptions)>& test) {
  for (const bool narrow : {false, true}) {
    SCOPED_TRACE(narrow ? "low_precision_grads" : "FP32 gradients");
    test({.low_precision_grads = narrow});
  }
}

TEST(LowPrecisionGrads, AreOffUnlessAskedFor) {
  const Tensor p = parameter({4});
  {
    const SGD sgd({p}, SGDOptions(1));
    EXPECT_FALSE(sgd.low_precision_grads());
    EXPECT_EQ(p.grad_dtype(), at::kFloat);
    use(p, 3).backward();
    EXPECT_EQ(p.grad().scalar_type(), at::kFloat);
  }
  p.mutable_grad().reset();
  const SGD sgd({p}, SGDOptions(1), kNarrow);
  EXPECT_TRUE(sgd.low_precision_grads());
  use(p, 3).backward();
  EXPECT_EQ(p.grad().scalar_type(), at::kBFloat16);
}

TEST(LowPrecisionGrads, CanBeSwitchedAtAnyTime) {
  const Tensor p = parameter({4}), before = p.detach().clone();
  SGD sgd({p}, SGDOptions(1));
  const auto backward = [&] {
    sgd.zero_grad();
    use(p, 3).backward();
    return p.grad().scalar_type();
  };
  for (int round = 0; round < 2; ++round) {
    EXPECT_EQ(backward(), at::kFloat);
    sgd.set_low_precision_grads(true);
    EXPECT_EQ(backward(), at::kBFloat16);
    const Tensor loss = use(p, 3);  // goes backward after the switch
    sgd.set_low_precision_grads(false);
    EXPECT_EQ(p.grad().scalar_type(), at::kFloat);
    p.mutable_grad().reset();
    loss.backward();
    EXPECT_EQ(p.grad().scalar_type(), at::kFloat);
    EXPECT_TRUE(p.grad().equal(torch::full({4}, 3.)));
  }
  sgd.step();
  EXPECT_TRUE(p.equal(before - 3));
}

TEST(LowPrecisionGrads, AreForGroupsThatComeLaterToo) {
  const Tensor p = parameter({4}), q = parameter({2});
  SGD sgd({p}, SGDOptions(1));
  sgd.set_low_precision_grads(true);
  sgd.add_param_group(torch::optim::OptimizerParamGroup({q}));
  use(q, 3).backward();
  EXPECT_EQ(q.grad().scalar_type(), at::kBFloat16);
}

// What unscale_ and clipping had recorded goes into the gradients that become FP32.
TEST(LowPrecisionGrads, SwitchedOffBeforeTheStepLoseNothing) {
  const Tensor p = torch::zeros(1).requires_grad_();
  SGD sgd({p}, SGDOptions(1), kNarrow);
  use(p, 3 * 1024).backward();
  sgd.pending().unscale_(torch::full({}, 1024.F));
  sgd.pending().clip_norm(1.5);
  EXPECT_EQ(p.grad().item<float>(), 3 * 1024);
  sgd.set_low_precision_grads(false);
  EXPECT_NEAR(p.grad().item<float>(), 1.5, 1e-5);
  sgd.step();
  EXPECT_NEAR(p.item<float>(), -1.5, 1e-5);
}

TEST(LowPrecisionGrads, AUsersOwnChoiceOfGradDtypeStands) {
  const Tensor p = parameter({4});
  p.set_grad_dtype(at::kBFloat16);
  SGD sgd({p}, SGDOptions(1));
  for (int i = 0; i < 2; ++i) use(p, 3).backward();
  EXPECT_EQ(p.grad().scalar_type(), at::kBFloat16);
  EXPECT_TRUE(p.grad().to(at::kFloat).equal(torch::full({4}, 6.)));
}

TEST(LowPrecisionGrads, ATensorHookSeesFP32AndMayGiveItBack) {
  run_both([](StepOptions options) {
    for (const bool before : {true, false}) {
      const Tensor p = parameter({4});
      Tensor seen;
      const auto hook = [&](const Tensor& g) {
        seen = g;
        return torch::full_like(g, 257, at::kFloat);
      };
      unsigned number = 0;
      if (before) number = p.register_hook(hook);
      SGD sgd({p}, SGDOptions(1), options);
      const Tensor loss = use(p, 3);
      if (!before) number = p.register_hook(hook);
      loss.backward();
      EXPECT_EQ(seen.scalar_type(), at::kFloat);
      EXPECT_TRUE(p.grad().equal(torch::full({4}, 257.)));
      p.remove_hook(number);
      sgd.zero_grad();
      use(p, 3).backward();
      const auto kept = options.low_precision_grads ? at::kBFloat16 : at::kFloat;
      EXPECT_EQ(p.grad().scalar_type(), kept) << "without a hook nothing is cast";
    }
  });
}

TEST(LowPrecisionGrads, AFrozenParameterMayBeHookedWhenItIsTrained) {
  run_both([](StepOptions options) {
    const Tensor p = parameter({4}).requires_grad_(false);
    SGD sgd({p}, SGDOptions(1), options);
    EXPECT_FALSE(p.requires_grad());
    p.requires_grad_(true);
    c10::ScalarType seen{};
    p.register_hook([&](const Tensor& g) { seen = g.scalar_type(); });
    use(p, 3).backward();
    EXPECT_EQ(seen, at::kFloat);
  });
}

TEST(LowPrecisionGrads, AutogradGradGivesFP32) {
  run_both([](StepOptions options) {
    const Tensor p = parameter({2, 4}), q = parameter({4});
    const SGD sgd({p, q}, SGDOptions(1), options);
    const Tensor sum = use(p, 3) + use(p.t(), 256) + use(q, 5);
    const auto gradients = torch::autograd::grad({sum}, {p, q});
    for (const Tensor& g : gradients) EXPECT_EQ(g.scalar_type(), at::kFloat);
    EXPECT_TRUE(gradients[0].equal(torch::full({2, 4}, 259.)));
    EXPECT_TRUE(gradients[1].equal(torch::full({4}, 5.)));
    for (const Tensor& x : {p, q}) EXPECT_FALSE(x.grad().defined());
    const Tensor loss = use(p.t(), 3);
    loss.backward({}, /*retain_graph=*/std::nullopt, /*create_graph=*/false, Tensors{p});
    const auto kept = options.low_precision_grads ? at::kBFloat16 : at::kFloat;
    EXPECT_EQ(p.grad().scalar_type(), kept) << "backward(inputs) fills .grad";
  });
}

/// PyTorch's own gradient penalty (its notes on automatic mixed precision, "Gradient penalty").
struct Penalty {
  double norm;
  Tensors gradients;
};
Penalty penalty(const Tensors& parameters, double scale) {
  const Tensor x = parameter({16, 8}).detach() * 0.02, half = x.to(at::kHalf);
  const Tensor out = at::mm(half, weights::low_precision(parameters[0].t(), at::kHalf)) +
                     weights::low_precision(parameters[1], at::kHalf);
  const Tensor loss = out.to(at::kFloat).pow(2).mean();
  const auto scaled =
      torch::autograd::grad({loss * scale}, parameters, {}, {}, /*create_graph=*/true);
  Tensor squares = torch::zeros({});
  for (const Tensor& g : scaled) squares = squares + (g * (1 / scale)).pow(2).sum();
  const Tensor norm = squares.sqrt();
  ((loss + norm) * scale).backward();
  Penalty result{norm.item<double>(), {}};
  for (const Tensor& p : parameters) result.gradients.push_back(p.grad().to(at::kFloat) / scale);
  return result;
}

TEST(LowPrecisionGrads, PyTorchsGradientPenaltyIsThatWithoutAnOptimizer) {
  const auto fresh = [] {
    return Tensors{(parameter({4, 8}).detach() * 0.01).requires_grad_(),
                   (parameter({4}).detach() * 0.01).requires_grad_()};
  };
  const Penalty wanted = penalty(fresh(), 1024);
  ASSERT_GT(wanted.norm, 1e-4);
  run_both([&](StepOptions options) {
    const Tensors parameters = fresh();
    const SGD sgd(parameters, SGDOptions(1), options);
    const Penalty seen = penalty(parameters, 1024);
    EXPECT_NEAR(seen.norm, wanted.norm, 0x1p-9 * wanted.norm);
    for (std::size_t i = 0; i < parameters.size(); ++i)
      EXPECT_LE((seen.gradients[i] - wanted.gradients[i]).norm().item<double>(),
                0x1p-8 * wanted.gradients[i].norm().item<double>())
          << seen.gradients[i] << wanted.gradients[i];
  });
}

// 2,048 windows over a weight: each of its gradients is a sum of as many terms.
TEST(LowPrecisionGrads, OfUnfoldedWeightsAreAddedUpInFP32) {
  const Tensor x = torch::linspace(0.5, 1.5, 4 * 2048).reshape({4, 2048}).to(at::kBFloat16);
  const auto gradient = [&](const Tensor& p) {
    const Tensor loss = at::linear(x, weights::low_precision(p.unfold(0, 2048, 1), at::kBFloat16))
                            .to(at::kFloat)
                            .sum();
    loss.backward();  // the view is gone: one that lives gets FP32 anyway
    return p.grad().to(at::kFloat);
  };
  const Tensor wanted = gradient(parameter({4096}));
  run_both([&](StepOptions options) {
    const Tensor p = parameter({4096});
    const SGD sgd({p}, SGDOptions(1), options);
    const double error = (gradient(p) - wanted).abs().max().item<double>();
    EXPECT_LE(error, 0x1p-8 * wanted.abs().max().item<double>());
  });
}

// .grad with a graph of its own, summed over two backwards: d(p^2)/dp twice, differentiated again.
TEST(LowPrecisionGrads, WithAGraphOfTheirOwnAreAddedUpInItToo) {
  run_both([](StepOptions options) {
    const Tensor p = torch::full({4}, 2.).requires_grad_();
    const SGD sgd({p}, SGDOptions(1), options);
    for (int i = 0; i < 2; ++i)
      weights::low_precision(p, at::kBFloat16)
          .pow(2)
          .sum()
          .to(at::kFloat)
          .backward({}, /*retain_graph=*/true, /*create_graph=*/true);
    Tensor sum;
    sum = p.grad();
    p.mutable_grad().reset();  // the graph of .grad holds p, and p holds .grad
    EXPECT_TRUE(sum.detach().to(at::kFloat).equal(torch::full({4}, 8.)));
    const Tensor second = torch::autograd::grad({sum.sum()}, {p})[0];
    EXPECT_TRUE(second.equal(torch::full({4}, 4.))) << second;
  });
}

}  // namespace
}  // namespace demi::optim
