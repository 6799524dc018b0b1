#include "demi/step/pending_step.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cmath>
#include <limits>
#include <random>
#include <set>
#include <vector>

#include "demi/optim/clip.h"
#include "demi/optim/sgd.h"
#include "demi/optim/testing.h"

namespace demi::optim {
namespace {

using namespace testing;

/// SGD with rate 1 from 0: after a step the parameter is minus what was applied.
struct One {
  explicit One(StepOptions options = {}) : sgd({p}, SGDOptions(1), options) {}
  void gradient(float value) { set_grad(p, torch::full({1}, value)); }
  float applied() {
    const at::NoGradGuard no_grad;
    p.zero_();
    sgd.step();
    return -p.item<float>();
  }
  at::Tensor p = torch::zeros(1).requires_grad_();
  SGD sgd;
};

TEST(PendingStep, ASecondClipIsOnTopOfTheFirst) {
  One one;
  one.gradient(8);
  clip_grad_norm_({one.p}, 4);
  EXPECT_NEAR(clip_grad_norm_({one.p}, 6).item<float>(), 4, 1e-5);  // nothing left to clip
  EXPECT_NEAR(one.applied(), 4, 1e-5);
}

TEST(PendingStep, TheScaleOutlivesAppliedFactors) {
  One one;
  set_grad(one.p, torch::full({1}, 64.F, at::kBFloat16));
  one.sgd.pending().set_scale(at::scalar_tensor(8.F));
  one.sgd.pending().clip_norm(4);
  one.sgd.pending().apply_recorded_factors();
  EXPECT_NEAR(one.p.grad().item<float>(), 4, 1e-5);
  EXPECT_NEAR(one.applied(), 4, 1e-5);
  EXPECT_EQ(one.sgd.last_step().scale(), 8);
}

TEST(PendingStep, AFlagOfOthersOutlivesAppliedFactors) {
  One one;
  one.gradient(8);
  one.sgd.pending().skip_if(torch::ones({}));
  clip_grad_norm_({one.p}, 4);
  one.sgd.pending().apply_recorded_factors();
  EXPECT_EQ(one.applied(), 0);
  EXPECT_TRUE(one.sgd.last_step().skipped());
}

// As in PyTorch, where the clip has written to .grad by then.
TEST(PendingStep, AClipStaysOfGradientsThatAreUnscaledOnceMore) {
  One one;
  const at::Tensor scale = at::scalar_tensor(2.F);
  one.gradient(64);
  one.sgd.pending().unscale_(scale);
  clip_grad_norm_({one.p}, 8);  // of 32
  one.sgd.pending().unscale_(scale);
  EXPECT_NEAR(one.applied(), 4, 1e-5);
}

// The sparse gradient's own version does not change with its values.
TEST(PendingStep, ASparseGradientIsReadAgainAfterUnscale) {
  const at::Tensor p = torch::zeros({3, 2}).requires_grad_();
  SGD sgd({p}, SGDOptions(1));
  const at::Tensor gradient = torch::full({3, 2}, 8.F);
  set_grad(p, gradient.to_sparse(1));
  sgd.pending().measure();
  sgd.pending().unscale_(at::scalar_tensor(2.F));
  sgd.step();
  EXPECT_TRUE(at::equal(p.detach(), -gradient / 2));
}

// As in PyTorch, where the limit has been written to .grad by then.
TEST(PendingStep, ALimitIsForTheScaledGradientIfItComesBeforeTheScale) {
  const at::Tensor scale = at::scalar_tensor(4.F);
  for (const bool in_place : {false, true}) {
    for (const auto dtype : {at::kFloat, at::kBFloat16}) {
      One one;
      set_grad(one.p, torch::full({1}, 64.F, dtype));
      clip_grad_value_({one.p}, 8);
      in_place ? one.sgd.pending().unscale_(scale) : one.sgd.pending().set_scale(scale);
      EXPECT_EQ(one.applied(), 2);
    }
  }
}

TEST(PendingStep, TheLeastLimitCounts) {
  One one;
  one.gradient(8);
  clip_grad_value_({one.p}, 2);
  clip_grad_value_({one.p}, 5);
  EXPECT_EQ(one.applied(), 2);
}

TEST(PendingStep, ClippingReadsTheGradientsEvenWithoutTheCheck) {
  One one({.skip_nonfinite = false});
  one.gradient(8);
  clip_grad_norm_({one.p}, 4);
  EXPECT_NEAR(one.applied(), 4, 1e-5);
  EXPECT_EQ(one.sgd.last_step().grad_norm(), 8);
}

TEST(PendingStep, AFlagOfOthersSkipsEvenWithoutTheCheck) {
  One one({.skip_nonfinite = false});
  one.gradient(8);
  one.sgd.pending().skip_if(torch::ones({}));
  EXPECT_EQ(one.applied(), 0);
  EXPECT_TRUE(one.sgd.last_step().skipped());
}

TEST(PendingStep, AnInfIsTakenOnceIfTheCallerSaysSo) {
  One one;
  const float inf = std::numeric_limits<float>::infinity();
  one.gradient(inf);
  one.sgd.pending().set_scale(at::scalar_tensor(2.F));
  one.sgd.pending().skip_if(torch::ones({}));
  one.sgd.pending().take_nonfinite();
  EXPECT_EQ(one.applied(), inf);
  EXPECT_FALSE(one.sgd.last_step().skipped());
  one.gradient(inf);
  EXPECT_EQ(one.applied(), 0) << "the next step is its own";
  EXPECT_TRUE(one.sgd.last_step().skipped());
}

TEST(PendingStep, AFlagOfAnotherDtypeIsReadInEachStep) {
  One one;
  const at::Tensor flag = torch::zeros({}, at::kDouble);
  for (const double found : {0.0, 1.0, 0.0}) {
    flag.fill_(found);
    one.gradient(8);
    one.sgd.pending().skip_if(flag);
    EXPECT_EQ(one.applied(), found != 0 ? 0 : 8);
  }
}

TEST(PendingStep, AFlagOfOthersOutlivesTheGradients) {
  One one;
  one.gradient(8);
  clip_grad_norm_({one.p}, 4);
  one.sgd.pending().skip_if(torch::ones({}));
  one.gradient(2);
  EXPECT_EQ(one.applied(), 0);
}

// autograd::grad runs the hooks of a parameter and leaves its .grad alone.
TEST(PendingStep, AGradientTakenBesideLeavesTheClip) {
  One one;
  one.gradient(8);
  clip_grad_norm_({one.p}, 4);
  torch::autograd::grad({(one.p * 3).sum()}, {one.p});
  EXPECT_NEAR(one.applied(), 4, 1e-5);
}

TEST(PendingStep, ANewGradientIsNotClippedWithThoseOfBefore) {
  const at::Tensor p = torch::zeros(1).requires_grad_(), q = torch::zeros(1).requires_grad_();
  SGD sgd({p, q}, SGDOptions(1));
  for (const auto& each : {p, q}) set_grad(each, torch::full({1}, 8.F));
  clip_grad_norm_({p, q}, 4, /*norm_type=*/1);
  clip_grad_value_({p, q}, 1);
  set_grad(p, torch::full({1}, 8.F));
  sgd.step();
  EXPECT_EQ(p.item<float>(), -8);
  EXPECT_EQ(q.item<float>(), -1);
}

// unscale_ gives it memory of its own before it divides.
TEST(PendingStep, AClippedGradientThatOverlapsItselfKeepsItsFactor) {
  const at::Tensor p = torch::zeros({4}).requires_grad_();
  SGD sgd({p}, SGDOptions(1));
  set_grad(p, torch::full({1}, 1024.F).expand({4}));
  clip_grad_norm_({p}, 1024);  // of 2048
  sgd.pending().unscale_(at::scalar_tensor(1024.F));
  sgd.step();
  EXPECT_TRUE(at::allclose(p, torch::full({4}, -0.5F)));
}

// Between measuring and the step: another tensor on the same memory, other memory in the same
// tensor, no gradient any more.
TEST(PendingStep, AReplacedGradientIsMeasuredAgain) {
  const at::Tensor p = torch::zeros({2, 2}).requires_grad_();
  SGD sgd({p}, SGDOptions(1));
  const at::Tensor g = torch::tensor({{1.F, 2.F}, {3.F, 4.F}});
  set_grad(p, g);
  sgd.pending().measure();
  set_grad(p, g.t());
  sgd.step();
  EXPECT_TRUE(at::equal(p.detach(), -g.t()));
  set_grad(p, g.clone());
  sgd.pending().measure();
  p.grad().set_data(torch::full({2, 2}, std::numeric_limits<float>::infinity()));
  sgd.step();
  EXPECT_TRUE(sgd.last_step().skipped());
}

TEST(PendingStep, AGradientThatIsGoneIsNotInTheNorm) {
  const at::Tensor p = torch::zeros(1).requires_grad_(), q = torch::zeros(1).requires_grad_();
  SGD sgd({p, q}, SGDOptions(1));
  set_grad(p, torch::full({1}, 3.F));
  set_grad(q, torch::full({1}, 4.F));
  EXPECT_EQ(sgd.pending().grad_norm().item<float>(), 5);
  set_grad(q, {});
  EXPECT_EQ(sgd.pending().grad_norm().item<float>(), 3);
}

TEST(PendingStep, RecordsAreForOneStep) {
  One one;
  one.gradient(8);
  one.sgd.pending().set_scale(at::scalar_tensor(2.F));
  one.sgd.pending().skip_if(torch::zeros({}));
  clip_grad_value_({one.p}, 1);
  EXPECT_EQ(one.applied(), 1);
  one.gradient(8);
  EXPECT_EQ(one.applied(), 8);
  EXPECT_EQ(one.sgd.last_step().scale(), 1);
  one.gradient(8);
  EXPECT_TRUE(one.sgd.pending().clip_norm(4));  // the factor of the first step is gone
  EXPECT_NEAR(one.applied(), 4, 1e-5);
}

TEST(PendingStep, TablesOfTwoKindsAreClippedByTheirJointNorm) {
  const at::Tensor p = torch::zeros(1).requires_grad_();
  const at::Tensor q = torch::zeros(1, at::kDouble).requires_grad_();
  SGD sgd({p, q}, SGDOptions(1));
  set_grad(p, torch::full({1}, 3.F));
  set_grad(q, torch::full({1}, 4.0, at::kDouble));
  EXPECT_FLOAT_EQ(clip_grad_norm_({p, q}, 1).item<float>(), 5);
  sgd.step();
  EXPECT_NEAR(p.item<double>(), -0.6, 1e-6);
  EXPECT_NEAR(q.item<double>(), -0.8, 1e-6);
  set_grad(p, torch::full({1}, 3e38F));
  set_grad(q, torch::ones(1, at::kDouble));
  sgd.pending().set_scale(at::scalar_tensor(0.5F));  // doubled, the first would be Inf
  EXPECT_TRUE(std::isfinite(sgd.pending().greatest().item<float>()));
  EXPECT_EQ(sgd.pending().found_inf().item<float>(), 0);
}

/// Two worlds: gradients under an optimizer of demi's, and under LibTorch's calls that write to
/// .grad at once.
class TwoWorlds {
 public:
  explicit TwoWorlds(unsigned seed) : random_(seed) {}

  void act() {
    switch (pick(9)) {
      case 0:
      case 1:
        return backward();
      case 2:
        return unscale();
      case 3:
        return clip_norm({0, 1, 2});
      case 4:
        return clip_norm({pick(3)});
      case 5:
        return clip_value({pick(3), pick(3)});
      case 6:
        return write(pick(3));
      case 7:
        return put_another(pick(3));
      default:
        return step();
    }
  }
  void step() {
    const bool skip = sgd_.pending().has_gradients() && pick(4) == 0;
    if (skip) sgd_.pending().skip_if(torch::ones({}));
    sgd_.step();
    EXPECT_EQ(sgd_.last_step().skipped(), skip);
    for (std::size_t i = 0; i < ours_.size(); ++i) {
      const at::Tensor& gradient = theirs_[i].grad();
      if (gradient.defined() && !skip) theirs_[i].data().sub_(gradient);
      EXPECT_TRUE(at::allclose(ours_[i].detach(), theirs_[i].detach(), 1e-5, 1e-6))
          << ours_[i] << theirs_[i];
      ours_[i].mutable_grad().reset();
      theirs_[i].mutable_grad().reset();
      theirs_[i].data().copy_(ours_[i].detach());
    }
    limited_.clear();
  }

 private:
  using Places = std::vector<std::size_t>;

  std::size_t pick(unsigned count) { return random_() % count; }
  static std::vector<at::Tensor> at_places(const std::vector<at::Tensor>& all,
                                           const Places& places) {
    std::vector<at::Tensor> some;
    for (const std::size_t i : places) some.push_back(all[i]);
    return some;
  }

  void backward() {
    const bool anew = pick(2) == 0;
    for (std::size_t i = 0; i < ours_.size(); ++i) {
      if (anew) ours_[i].mutable_grad().reset(), theirs_[i].mutable_grad().reset();
      if (theirs_[i].grad().defined() || pick(4) == 0) continue;
      put_another(i);
    }
  }
  void put_another(std::size_t i) {
    const at::Tensor gradient = torch::full({2}, 1.F + static_cast<float>(pick(64)));
    set_grad(ours_[i], gradient.clone());
    set_grad(theirs_[i], gradient.clone());
  }
  void write(std::size_t i) {
    const bool limited = limited_.count(i) > 0;  // PyTorch has written the limit before
    if (!theirs_[i].grad().defined() || limited) return;
    ours_[i].grad().mul_(2);
    theirs_[i].grad().mul_(2);
  }
  void unscale() {
    if (!sgd_.pending().has_gradients()) return;
    sgd_.pending().unscale_(at::scalar_tensor(4.F));
    for (const at::Tensor& p : theirs_)
      if (p.grad().defined()) p.grad().div_(4);
  }
  void clip_norm(const Places& places) {
    const double limit = 1 + static_cast<double>(pick(16));
    clip_grad_norm_(at_places(ours_, places), limit);
    torch::nn::utils::clip_grad_norm_(at_places(theirs_, places), limit);
  }
  void clip_value(const Places& places) {
    const double limit = 1 + static_cast<double>(pick(16));
    clip_grad_value_(at_places(ours_, places), limit);
    torch::nn::utils::clip_grad_value_(at_places(theirs_, places), limit);
    limited_.insert(places.begin(), places.end());
  }

  std::mt19937 random_;
  std::vector<at::Tensor> ours_ = some(), theirs_ = some();
  SGD sgd_{ours_, SGDOptions(1)};
  std::set<std::size_t> limited_;

  static std::vector<at::Tensor> some() {
    std::vector<at::Tensor> all;
    for (int i = 0; i < 3; ++i) all.push_back(torch::zeros(2).requires_grad_());
    return all;
  }
};

TEST(PendingStep, GoesAsIfAllWasWrittenToTheGradients) {
  for (unsigned seed = 0; seed < 200 && !HasFailure(); ++seed) {
    SCOPED_TRACE(seed);
    TwoWorlds worlds(seed);
    for (int i = 0; i < 20 && !HasFailure(); ++i) worlds.act();
    worlds.step();
  }
}

}  // namespace
}  // namespace demi::optim
