#include "demi/optim/clip.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cmath>

#include "demi/core/error.h"
#include "demi/optim/adamw.h"
#include "demi/optim/sgd.h"
#include "demi/optim/testing.h"
#include "demi/step/pending_step.h"

namespace demi::optim {
namespace {

using namespace testing;
constexpr double kScale = 1024;

/// Two parameters with a demi optimizer whose gradients are scaled, and the same two with torch's.
struct Pair {
  explicit Pair(at::ScalarType dtype)
      : mine({p, q}, SGDOptions(1)), theirs({a, b}, torch::optim::SGDOptions(1)) {
    for (const auto& [x, y] : {std::pair(p, a), std::pair(q, b)}) {
      set_grad(y, gradient(y, dtype, 1).to(at::kFloat));
      set_grad(x, (y.grad() * kScale).to(dtype));
    }
    mine.pending().unscale_(at::scalar_tensor(kScale, at::kFloat));
  }
  void expect_same_step(double tolerance) {
    mine.step();
    theirs.step();
    EXPECT_TRUE(at::allclose(p, a, 0, tolerance));
    EXPECT_TRUE(at::allclose(q, b, 0, tolerance));
  }

  at::Tensor p = parameter({5}), q = parameter({3, 2}), a = parameter({5}), b = parameter({3, 2});
  SGD mine;
  torch::optim::SGD theirs;
};

TEST(Clip, TheWholeOptimizerAsInTorchWithoutScale) {
  for (const auto dtype : {at::kFloat, at::kHalf, at::kBFloat16}) {
    for (const double limit : {0.5, 100.0, 0.0}) {
      Pair pair(dtype);
      const at::Tensor before = pair.p.grad().clone();
      const double expected = torch::nn::utils::clip_grad_norm_({pair.a, pair.b}, limit);
      EXPECT_NEAR(clip_grad_norm_({pair.p, pair.q}, limit).item<double>(), expected, 1e-6);
      EXPECT_TRUE(at::equal(pair.p.grad(), before));
      EXPECT_TRUE(at::allclose(pair.mine.unscaled_grad(pair.p), pair.a.grad(), 0, 1e-6));
      pair.expect_same_step(1e-6);
      EXPECT_NEAR(pair.mine.last_step().grad_norm().value(), expected, 1e-6);
    }
  }
}

// PyTorch's order without unscale_: what is clipped is the scaled gradient, then the step divides.
TEST(Clip, BeforeTheScaleIsKnownTheScaledGradientsAreClipped) {
  const at::Tensor p = parameter({5}), q = parameter({5});
  SGD mine({p}, SGDOptions(1));
  torch::optim::SGD theirs({q}, torch::optim::SGDOptions(1));
  set_grad(p, gradient(p, at::kFloat, 1) * kScale);
  set_grad(q, p.grad().clone());
  const double expected = torch::nn::utils::clip_grad_norm_({q}, 0.5);
  EXPECT_NEAR(clip_grad_norm_({p}, 0.5).item<double>(), expected, 1e-3);
  q.grad().div_(kScale);
  mine.pending().set_scale(at::scalar_tensor(kScale, at::kFloat));
  EXPECT_EQ(mine.pending().found_inf().item<float>(), 0);
  mine.step();
  theirs.step();
  EXPECT_TRUE(at::allclose(p - parameter({5}), q - parameter({5}), 1e-5, 0));
}

TEST(Clip, ByValue) {
  for (const auto dtype : {at::kFloat, at::kBFloat16}) {
    Pair pair(dtype);
    torch::nn::utils::clip_grad_value_({pair.a, pair.b}, 0.25);
    clip_grad_value_({pair.p, pair.q}, 0.25);
    EXPECT_TRUE(at::equal(pair.mine.unscaled_grad(pair.q), pair.b.grad()));
    pair.expect_same_step(0);
  }
}

TEST(Clip, PartsAndOtherNormsAndOneAfterTheOther) {
  for (const auto dtype : {at::kFloat, at::kHalf}) {
    Pair pair(dtype);
    const auto both = [&](auto mine, auto theirs, double limit, double type) {
      const double expected = torch::nn::utils::clip_grad_norm_(theirs, limit, type);
      EXPECT_NEAR(clip_grad_norm_(mine, limit, type).template item<double>(), expected, 1e-5);
    };
    using Tensors = std::vector<at::Tensor>;
    both(Tensors{pair.p}, Tensors{pair.a}, 0.5, 2.0);
    both(Tensors{pair.p, pair.q}, Tensors{pair.a, pair.b}, 0.9, 2.0);
    clip_grad_value_({pair.q}, 0.2);
    torch::nn::utils::clip_grad_value_({pair.b}, 0.2);
    both(Tensors{pair.p, pair.q}, Tensors{pair.a, pair.b}, 0.6, 3.0);
    both(Tensors{pair.q}, Tensors{pair.b}, 0.1, std::numeric_limits<double>::infinity());
    pair.expect_same_step(1e-5);
  }
}

TEST(Clip, OverSeveralOptimizersAndForeignParameters) {
  Pair pair(at::kBFloat16);
  const at::Tensor r = parameter({4}), c = parameter({4}), foreign = parameter({2}),
                   d = parameter({2});
  AdamW other({r}, AdamWOptions(0.1));
  torch::optim::AdamW torchs({c}, torch::optim::AdamWOptions(0.1));
  for (const auto& [x, y] : {std::pair(r, c), std::pair(foreign, d)}) {
    set_grad(x, gradient(x, at::kFloat, 2));
    set_grad(y, gradient(y, at::kFloat, 2));
  }
  const double expected = torch::nn::utils::clip_grad_norm_({pair.a, pair.b, c, d}, 0.7);
  EXPECT_NEAR(clip_grad_norm_({pair.p, pair.q, r, foreign}, 0.7).item<double>(), expected, 1e-5);
  EXPECT_TRUE(at::allclose(foreign.grad(), d.grad(), 0, 1e-6));
  other.step();
  torchs.step();
  EXPECT_TRUE(at::allclose(r, c, 0, 1e-5));
  pair.expect_same_step(1e-5);
}

TEST(Clip, ARecordedClipIsForOneStep) {
  const at::Tensor p = torch::zeros(1).requires_grad_();
  SGD sgd({p}, SGDOptions(1));
  for (int step = 0; step < 2; ++step) {
    set_grad(p, torch::full({1}, 8.F));
    if (step == 0) clip_grad_norm_({p}, 1);
    sgd.step();
  }
  EXPECT_NEAR(p.item<float>(), -9, 1e-5);
}

TEST(Clip, NonFiniteNorms) {
  const at::Tensor p = parameter({2});
  SGD sgd({p}, SGDOptions(1));
  set_grad(p, torch::tensor({1.F, std::nanf("")}));
  EXPECT_THROW(clip_grad_norm_({p}, 1, 2, /*error_if_nonfinite=*/true), TrainingError);
  EXPECT_TRUE(std::isnan(clip_grad_norm_({p}, 1).item<double>()));
  sgd.step();
  EXPECT_TRUE(sgd.last_step().skipped());
  EXPECT_TRUE(at::equal(p, parameter({2})));
}

TEST(Clip, ArgumentsOutOfRangeAndNoGradients) {
  const at::Tensor p = parameter({2});
  EXPECT_THROW(clip_grad_norm_({p}, -1), UsageError);
  EXPECT_THROW(clip_grad_norm_({p}, std::nan("")), UsageError);
  EXPECT_THROW(clip_grad_norm_({p}, 1, 0), UsageError);
  EXPECT_THROW(clip_grad_value_({p}, -1), UsageError);
  EXPECT_EQ(clip_grad_norm_({p}, 1).item<double>(), 0);
  EXPECT_EQ(clip_grad_norm_({}, 1).item<double>(), 0);
}

// Two names of p are not p and q.
TEST(Clip, AParameterNamedTwiceCountsOnce) {
  const at::Tensor p = torch::zeros(1).requires_grad_(), q = torch::zeros(1).requires_grad_(),
                   foreign = torch::zeros(1).requires_grad_();
  SGD sgd({p, q}, SGDOptions(1));
  for (const auto& x : {p, q, foreign}) set_grad(x, torch::full({1}, 8.F));
  EXPECT_NEAR(clip_grad_norm_({p, p}, 2).item<float>(), 8, 1e-5);
  EXPECT_NEAR(clip_grad_norm_({foreign, foreign}, 2).item<float>(), 8, 1e-5);
  clip_grad_value_({foreign, foreign}, 100);
  sgd.step();
  EXPECT_NEAR(p.item<float>(), -2, 1e-5);
  EXPECT_EQ(q.item<float>(), -8);
  EXPECT_NEAR(foreign.grad().item<float>(), 2, 1e-5);
}

TEST(Clip, AnUndefinedParameterIsNamed) {
  const at::Tensor p = parameter({2});
  EXPECT_NE(complaint([&] {
              clip_grad_norm_({p, at::Tensor()}, 1);
            }).find("undefined"),
            std::string::npos);
  EXPECT_NE(complaint([&] { clip_grad_value_({at::Tensor()}, 1); }).find("clip_grad_value_"),
            std::string::npos);
}

// Python's PyTorch 2.15 gives sqrt(1 + 4 + 9 + 16 + 25) for these, and factors of fp64.
TEST(Clip, ComplexGradientsCountWithBothParts) {
  const at::Tensor p = torch::zeros(2, at::kComplexFloat).requires_grad_(), q = torch::zeros(1);
  q.requires_grad_();
  set_grad(p, torch::complex(torch::tensor({1.F, 2.F}), torch::tensor({3.F, 4.F})));
  set_grad(q, torch::full({1}, 5.F));
  const double norm = std::sqrt(1.0 + 4 + 9 + 16 + 25);
  EXPECT_NEAR(clip_grad_norm_({p, q}, 1).item<double>(), norm, 1e-6);
  EXPECT_NEAR(at::imag(p.grad())[1].item<double>(), 4 / norm, 1e-6);
  EXPECT_NEAR(q.grad().item<double>(), 5 / norm, 1e-6);
}

TEST(Clip, Fp64GradientsKeepTheirDigitsAndTheirRange) {
  for (const double unit : {1.0, 1e100}) {
    const at::Tensor p = torch::zeros(2, at::kDouble).requires_grad_();
    set_grad(p, torch::tensor({3 * unit, 4 * unit}, at::kDouble));
    const at::Tensor norm = clip_grad_norm_({p}, 1, 2, /*error_if_nonfinite=*/true);
    EXPECT_EQ(norm.scalar_type(), at::kDouble);
    EXPECT_DOUBLE_EQ(norm.item<double>(), 5 * unit);
    EXPECT_DOUBLE_EQ(p.grad()[0].item<double>(), 3 * unit * (1 / (5 * unit + 1e-6)));
  }
}

}  // namespace
}  // namespace demi::optim
