#include "demi/scaler/grad_scaler.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cmath>
#include <limits>

#include "demi/core/error.h"
#include "demi/optim/testing.h"
#include "demi/weights/recorded_warnings_testing.h"

namespace demi {
namespace {

using optim::testing::complaint;
using optim::testing::kInf;
using ::testing::HasSubstr;
using weights::testing::RecordedWarnings;

at::Tensor leaf(at::ArrayRef<double> values) {
  return torch::tensor(values, torch::kFloat).requires_grad_();
}

/// One step with these gradients (already scaled).
StepResult step_with(GradScaler& scaler, torch::optim::Optimizer& optimizer, const at::Tensor& p,
                     const at::Tensor& gradient) {
  scaler.scale(torch::zeros({}));
  p.mutable_grad() = gradient;
  StepResult result = scaler.step(optimizer);
  scaler.update();
  return result;
}

TEST(GradScaler, StepsAsIfThereWereNoScale) {
  const auto a = leaf({1, 2}), b = leaf({1, 2});
  torch::optim::Adam scaled({a}, 0.1), plain({b}, 0.1);
  GradScaler scaler;
  for (int i = 0; i < 3; ++i) {
    scaled.zero_grad();
    plain.zero_grad();
    scaler.scale((a * a).sum()).backward();
    (b * b).sum().backward();
    const StepResult result = scaler.step(scaled);
    EXPECT_FALSE(result.skipped());
    EXPECT_EQ(result.scale(), 65536);
    EXPECT_EQ(result.optimizer(), &scaled);
    EXPECT_FALSE(result.grad_norm().has_value());
    scaler.update();
    plain.step();
  }
  EXPECT_TRUE(at::equal(a, b));
}

TEST(GradScaler, ASkippedStepChangesNothingAndBacksOff) {
  for (const float bad : {kInf, -kInf, std::nanf("")}) {
    const auto p = leaf({1, 2});
    torch::optim::Adam adam({p}, 0.1);
    GradScaler scaler;
    step_with(scaler, adam, p, torch::ones(2));
    const auto& state =
        static_cast<torch::optim::AdamParamState&>(*adam.state().at(p.unsafeGetTensorImpl()));
    const auto before = p.detach().clone(), moment = state.exp_avg().clone();
    EXPECT_TRUE(step_with(scaler, adam, p, torch::tensor({1.F, bad})).skipped());
    EXPECT_TRUE(at::equal(p, before));
    EXPECT_TRUE(at::equal(state.exp_avg(), moment));
    EXPECT_EQ(state.step(), 1);
    EXPECT_EQ(scaler.get_scale(), 32768);
    EXPECT_FALSE(step_with(scaler, adam, p, torch::ones(2)).skipped());
  }
}

TEST(GradScaler, FiniteIsTestedByElementNotBySum) {
  const auto p = leaf({0, 0});
  torch::optim::SGD sgd({p}, 1.0);
  GradScaler scaler(GradScalerOptions{.init_scale = 1});
  EXPECT_FALSE(step_with(scaler, sgd, p, torch::tensor({3e38F, 3e38F}))
                   .skipped());  // sum and squares overflow
  EXPECT_FALSE(step_with(scaler, sgd, p, torch::tensor({1e-45F, -0.F})).skipped());
  EXPECT_TRUE(step_with(scaler, sgd, p, torch::tensor({kInf, -kInf})).skipped());
}

TEST(GradScaler, ScalesEveryDtypeAndListsToo) {
  GradScaler scaler;
  EXPECT_EQ(scaler.scale(torch::ones({}, torch::kHalf)).scalar_type(), torch::kFloat);
  EXPECT_EQ(scaler.scale(torch::ones({2}, torch::kHalf)).max().item<float>(),
            65536);  // Inf in fp16
  EXPECT_EQ(scaler.scale(torch::ones({2}, torch::kBFloat16)).scalar_type(), torch::kFloat);
  EXPECT_EQ(scaler.scale(torch::ones({2}, torch::kDouble)).scalar_type(), torch::kDouble);
  const auto many = scaler.scale(std::vector<at::Tensor>{torch::ones(1), torch::full({1}, 2.0)});
  EXPECT_EQ(many[1].item<float>(), 131072);
}

TEST(GradScaler, UnscaleShowsTheTrueGradientsOfAnyDtype) {
  for (const auto dtype : {torch::kFloat, torch::kHalf, torch::kBFloat16, torch::kDouble}) {
    const auto p = torch::zeros(2, dtype).requires_grad_();
    torch::optim::SGD sgd({p}, 1.0);
    GradScaler scaler(GradScalerOptions{.init_scale = 8});
    scaler.scale((p * torch::tensor({1.0, 2.0}).to(dtype)).sum()).backward();
    scaler.unscale_(sgd);
    EXPECT_TRUE(at::equal(p.grad(), torch::tensor({1.0, 2.0}).to(dtype))) << dtype;
    scaler.step(sgd);
    EXPECT_TRUE(at::equal(p, torch::tensor({-1.0, -2.0}).to(dtype))) << dtype;
  }
}

TEST(GradScaler, SparseGradientsAreCheckedAfterTheirDuplicatesAreSummed) {
  const auto sparse = [](at::ScalarType dtype, float value) {
    return at::sparse_coo_tensor(torch::tensor({{1, 1}}), torch::full({2}, value, dtype), {3});
  };
  const auto p = torch::zeros(3, torch::kHalf).requires_grad_();
  torch::optim::SGD half({p}, 1.0);
  GradScaler scaler(GradScalerOptions{.init_scale = 4});
  EXPECT_TRUE(
      step_with(scaler, half, p, sparse(torch::kHalf, 60000)).skipped());  // 120,000 overflows fp16

  const auto q = leaf({0, 0, 0});
  torch::optim::SGD sgd({q}, 1.0);
  scaler.update(4);
  EXPECT_FALSE(step_with(scaler, sgd, q, sparse(torch::kFloat, 8)).skipped());
  EXPECT_TRUE(at::equal(q, torch::tensor({0.F, -4.F, 0.F})));
}

TEST(GradScaler, OneOverflowAmongOptimizersBacksOffOnceAndHoldsBackItsOwn) {
  const auto a = leaf({1}), b = leaf({1});
  torch::optim::SGD first({a}, 1.0), second({b}, 1.0);
  GradScaler scaler;
  scaler.scale(torch::zeros({}));
  a.mutable_grad() = torch::full({1}, kInf);
  b.mutable_grad() = torch::full({1}, 65536.F);
  EXPECT_TRUE(scaler.step(first).skipped());
  EXPECT_FALSE(scaler.step(second).skipped());
  scaler.update();
  EXPECT_EQ(a.item<float>(), 1);
  EXPECT_EQ(b.item<float>(), 0);
  EXPECT_EQ(scaler.get_scale(), 32768);
}

TEST(GradScaler, OptimizersThatStepTogetherSkipTogether) {
  const auto a = leaf({1}), b = leaf({1});
  torch::optim::SGD first({a}, 1.0), second({b}, 1.0);
  GradScaler scaler;
  scaler.scale(torch::zeros({}));
  a.mutable_grad() = torch::ones(1);
  b.mutable_grad() = torch::full({1}, kInf);
  for (const auto& result : scaler.step({&first, &second})) EXPECT_TRUE(result.skipped());
  EXPECT_EQ(a.item<float>(), 1);
}

TEST(GradScaler, CallsOutOfOrderAreNamedAsInPyTorch) {
  const auto p = leaf({1});
  torch::optim::SGD sgd({p}, 1.0);
  GradScaler scaler;
  EXPECT_THAT(complaint([&] { scaler.unscale_(sgd); }), HasSubstr("no scale yet"));
  EXPECT_THAT(complaint([&] { scaler.step(sgd); }), HasSubstr("no scale yet"));
  EXPECT_THAT(complaint([&] { scaler.update(); }), HasSubstr("no scale yet"));
  scaler.scale(torch::zeros({}));
  EXPECT_THAT(complaint([&] { scaler.update(); }),
              HasSubstr("no Inf checks were recorded prior to update"));
  EXPECT_THAT(complaint([&] { scaler.step(sgd); }),
              HasSubstr("no Inf checks were recorded for this optimizer"));
  scaler.update(65536);
  p.mutable_grad() = torch::ones(1);
  scaler.unscale_(sgd);
  EXPECT_THAT(complaint([&] { scaler.unscale_(sgd); }),
              HasSubstr("already been called on this optimizer"));
  scaler.step(sgd);
  EXPECT_THAT(complaint([&] { scaler.unscale_(sgd); }), HasSubstr("being called after step()"));
  EXPECT_THAT(complaint([&] { scaler.step(sgd); }), HasSubstr("step() has already been called"));
  scaler.update();
  EXPECT_EQ(complaint([&] { scaler.unscale_(sgd); }), "");
}

TEST(GradScaler, UpdateSetsAScaleThatIsOne) {
  GradScaler scaler;
  scaler.scale(torch::zeros({}));
  scaler.update(1024);
  EXPECT_EQ(scaler.get_scale(), 1024);
  scaler.update(torch::full({1}, 2.F));
  EXPECT_EQ(scaler.get_scale(), 2);
  for (const double bad : {0.0, -1.0, std::nan(""), static_cast<double>(kInf)})
    EXPECT_THROW(scaler.update(bad), UsageError);
  EXPECT_THROW(scaler.update(torch::ones(2)), UsageError);
  EXPECT_THROW(scaler.update(torch::ones(1, torch::kDouble)), UsageError);
  EXPECT_THROW(scaler.update(torch::ones(1).requires_grad_()), UsageError);
  EXPECT_EQ(scaler.get_scale(), 2);
}

TEST(GradScaler, GettersSettersAndState) {
  GradScaler scaler;
  scaler.set_growth_factor(3);
  scaler.set_backoff_factor(0.25);
  scaler.set_growth_interval(5);
  EXPECT_EQ(scaler.get_growth_factor(), 3);
  EXPECT_EQ(scaler.get_backoff_factor(), 0.25);
  EXPECT_EQ(scaler.get_growth_interval(), 5);
  EXPECT_THROW(scaler.set_growth_factor(1), UsageError);
  EXPECT_EQ(scaler.get_growth_factor(), 3);
  EXPECT_EQ(scaler.state_dict(), (StateDict{{"scale", 65536},
                                            {"growth_factor", 3},
                                            {"backoff_factor", 0.25},
                                            {"growth_interval", 5},
                                            {"_growth_tracker", 0}}));
}

TEST(GradScaler, GoesOnAfterLoadAsIfNothingHadHappened) {
  for (const auto& options : {GradScalerOptions{.growth_interval = 3},
                              {.growth_interval = 3, .hysteresis = 2},
                              {.mode = ScaleMode::kAmax, .amax_window = 4}}) {
    const auto p = leaf({1});
    torch::optim::SGD sgd({p}, 1.0);
    GradScaler whole(options), broken(options);
    for (int t = 0; t < 20; ++t) {
      const auto gradient =
          t % 5 == 3 ? torch::full({1}, kInf) : torch::full({1}, 10.F * static_cast<float>(t));
      step_with(whole, sgd, p, gradient.clone());
      step_with(broken, sgd, p, gradient.clone());
      GradScaler loaded(options);
      loaded.load_state_dict(broken.state_dict());
      broken = std::move(loaded);
      ASSERT_EQ(broken.get_scale(), whole.get_scale()) << t;
      ASSERT_EQ(broken.state_dict(), whole.state_dict()) << t;
    }
  }
}

/// A scaler that went through these steps, and one more that was loaded from its state.
GradScaler loaded_after(const GradScalerOptions& options, const std::vector<float>& gradients) {
  const auto p = leaf({1});
  torch::optim::SGD sgd({p}, 0.0);
  GradScaler before(options), after(options);
  for (const float g : gradients) step_with(before, sgd, p, torch::full({1}, g));
  after.load_state_dict(before.state_dict());
  return after;
}

TEST(GradScaler, HysteresisGoesThroughTheStateDict) {
  GradScaler scaler =
      loaded_after({.init_scale = 64, .growth_interval = 100, .hysteresis = 3}, {kInf, 1, kInf});
  EXPECT_EQ(scaler.get_scale(), 64);
  EXPECT_EQ(scaler.state_dict().at("_hysteresis_tracker"), 1);
  const auto p = leaf({1});
  torch::optim::SGD sgd({p}, 0.0);
  step_with(scaler, sgd, p, torch::full({1}, kInf));  // the third overflow
  EXPECT_EQ(scaler.get_scale(), 32);
}

// The window of 3 holds 8 / 4 = 2, 0.125 and 0.125; the 2 goes with the next step but one.
TEST(GradScaler, TheAmaxHistoryGoesThroughTheStateDict) {
  GradScaler scaler =
      loaded_after({.init_scale = 4, .mode = ScaleMode::kAmax, .amax_window = 3}, {8});
  EXPECT_EQ(scaler.get_scale(), 8192);  // 2^13 x 2 = 16,384 < 32,752 <= 2^14 x 2
  const auto p = leaf({1});
  torch::optim::SGD sgd({p}, 0.0);
  std::vector<float> scales;
  for (int i = 0; i < 3; ++i) {
    step_with(scaler, sgd, p, torch::full({1}, scaler.get_scale() / 8));
    scales.push_back(scaler.get_scale());
  }
  EXPECT_EQ(scales, (std::vector<float>{8192, 8192, 131072}));
}

TEST(GradScaler, ALongerAmaxHistoryIsCutToTheWindow) {
  GradScaler scaler(GradScalerOptions{.init_scale = 4, .mode = ScaleMode::kAmax, .amax_window = 2});
  StateDict state = scaler.state_dict();
  const std::vector<double> history{1000, 100, 10, 1};
  for (size_t i = 0; i < history.size(); ++i)
    state["_amax_history." + std::to_string(i)] = history[i];
  scaler.load_state_dict(state);
  const auto p = leaf({1});
  torch::optim::SGD sgd({p}, 0.0);
  step_with(scaler, sgd, p, torch::full({1}, 4.F));
  EXPECT_EQ(scaler.get_scale(), 16384);  // of 1 and 1
  EXPECT_EQ(scaler.state_dict().count("_amax_history.2"), 0U);
}

TEST(GradScaler, AStateWithNumbersThatCannotBeIsRefusedWhole) {
  GradScaler scaler(GradScalerOptions{.hysteresis = 2, .mode = ScaleMode::kAmax});
  const StateDict before = scaler.state_dict();
  for (const double bad : {std::nan(""), -1.0, 1e300}) {
    for (const char* key : {"_growth_tracker", "_hysteresis_tracker", "_amax_history.0"}) {
      StateDict broken = before;
      broken["growth_factor"] = 4;
      broken[key] = bad;
      EXPECT_THROW(scaler.load_state_dict(broken), UsageError) << key << bad;
      EXPECT_EQ(scaler.state_dict(), before) << key << bad;
    }
  }
}

TEST(GradScaler, AnExpandedGradientIsUnscaledInMemoryOfItsOwn) {
  const auto p = leaf({0, 0});
  torch::optim::SGD sgd({p}, 1.0);
  GradScaler scaler(GradScalerOptions{.init_scale = 4});
  const at::Tensor one = torch::full({1}, 8.F);
  EXPECT_FALSE(step_with(scaler, sgd, p, one.expand({2})).skipped());
  EXPECT_TRUE(at::equal(p, torch::full({2}, -2.F)));
  EXPECT_EQ(one.item<float>(), 8);
}

TEST(GradScaler, ABrokenStateIsRefusedWhole) {
  GradScaler scaler;
  const StateDict before = scaler.state_dict();
  EXPECT_THAT(complaint([&] { scaler.load_state_dict({}); }),
              HasSubstr("source state dict is empty"));
  StateDict broken = before;
  broken.erase("_growth_tracker");
  broken["growth_factor"] = 4;
  EXPECT_THROW(scaler.load_state_dict(broken), UsageError);
  broken = before;
  broken["scale"] = 0;
  EXPECT_THROW(scaler.load_state_dict(broken), UsageError);
  EXPECT_EQ(scaler.state_dict(), before);
}

TEST(GradScaler, DisabledItIsNotThere) {
  const auto p = leaf({1});
  torch::optim::SGD sgd({p}, 1.0);
  GradScaler scaler(GradScalerOptions{.enabled = false});
  const auto loss = p.sum();
  EXPECT_TRUE(scaler.scale(loss).is_same(loss));
  loss.backward();
  scaler.unscale_(sgd);
  EXPECT_FALSE(scaler.step(sgd).skipped());
  scaler.update();
  EXPECT_EQ(p.item<float>(), 0);
  EXPECT_EQ(scaler.get_scale(), 1);
  EXPECT_TRUE(scaler.state_dict().empty());
  EXPECT_NO_THROW(scaler.load_state_dict({}));
}

at::Tensor bowl(const at::Tensor& p) {
  return ((p - torch::tensor({3.F, -1.F})).pow(2) * torch::tensor({1.F, 10.F})).sum();
}

TEST(GradScaler, ClosuresWorkAsWithoutScale) {
  const auto a = leaf({0, 0}), b = leaf({0, 0});
  torch::optim::LBFGS scaled({a}, torch::optim::LBFGSOptions(0.5)),
      plain({b}, torch::optim::LBFGSOptions(0.5));
  GradScaler scaler;
  for (int i = 0; i < 3; ++i) {
    const StepResult result = scaler.step(scaled, [&] {
      scaled.zero_grad();
      const auto loss = bowl(a);
      scaler.scale(loss).backward();
      return loss;
    });
    scaler.update();
    plain.step([&] {
      plain.zero_grad();
      const auto loss = bowl(b);
      loss.backward();
      return loss;
    });
    EXPECT_FALSE(result.skipped());
    EXPECT_TRUE(result.loss().defined());
  }
  EXPECT_TRUE(at::equal(a, b));
}

TEST(GradScaler, AnOverflowInAClosureGivesEverythingBack) {
  const auto p = leaf({0, 0}), q = leaf({0, 0});
  torch::optim::LBFGS lbfgs({p}, torch::optim::LBFGSOptions(0.5)),
      undisturbed({q}, torch::optim::LBFGSOptions(0.5));
  GradScaler scaler, other;
  int calls = 0, bad_call = -1;
  const auto run = [&](GradScaler& with, torch::optim::LBFGS& optimizer, const at::Tensor& x) {
    calls = 0;
    const StepResult result = with.step(optimizer, [&] {
      optimizer.zero_grad();
      const auto loss = bowl(x) * (calls++ == bad_call ? kInf : 1.F);
      with.scale(loss).backward();
      return loss;
    });
    with.update();
    return result.skipped();
  };
  bad_call = 1;
  EXPECT_TRUE(run(scaler, lbfgs, p));  // before there is any state
  EXPECT_TRUE(lbfgs.state().empty());
  EXPECT_TRUE(at::equal(p, torch::zeros(2)));
  bad_call = -1;
  EXPECT_FALSE(run(scaler, lbfgs, p));
  EXPECT_FALSE(run(other, undisturbed, q));
  const auto before = p.detach().clone();
  bad_call = 2;
  EXPECT_TRUE(run(scaler, lbfgs, p));
  EXPECT_TRUE(at::equal(p, before));
  bad_call = -1;
  EXPECT_FALSE(run(scaler, lbfgs, p));
  EXPECT_FALSE(run(other, undisturbed, q));
  EXPECT_TRUE(at::equal(p, q));
  EXPECT_EQ(scaler.get_scale(), 16384);
}

TEST(GradScaler, AnOverflowInAClosureOfAnyOptimizerGivesEverythingBack) {
  const auto p = leaf({1, 2});
  torch::optim::Adam adam({p}, 0.1);
  GradScaler scaler;
  step_with(scaler, adam, p, torch::ones(2));
  const auto before = p.detach().clone();
  const auto moment = [&] {
    return static_cast<torch::optim::AdamParamState&>(*adam.state().at(p.unsafeGetTensorImpl()))
        .exp_avg();
  };
  const auto moment_before = moment().clone();
  const StepResult result = scaler.step(adam, [&] {
    const auto loss = bowl(p) * kInf;
    scaler.scale(loss).backward();
    return loss;
  });
  EXPECT_TRUE(result.skipped());
  EXPECT_TRUE(at::equal(p, before));
  EXPECT_TRUE(at::equal(moment(), moment_before));
}

TEST(GradScaler, AClosureDoesNotStepTwiceEither) {
  const auto p = leaf({1});
  torch::optim::SGD sgd({p}, 0.1);
  GradScaler scaler;
  const auto closure = [&] {
    sgd.zero_grad();
    const at::Tensor loss = p.square().sum();
    scaler.scale(loss).backward();
    return loss;
  };
  scaler.step(sgd, closure);
  EXPECT_THROW(scaler.step(sgd, closure), UsageError);
  scaler.update();
  EXPECT_NO_THROW(scaler.step(sgd, closure));
}

TEST(GradScaler, ManySkipsInARowGiveOneWarning) {
  const auto p = leaf({1});
  torch::optim::SGD sgd({p}, 1.0);
  GradScaler scaler(GradScalerOptions{.warn_after_skips = 3});
  const RecordedWarnings heard;
  for (int i = 0; i < 2; ++i) step_with(scaler, sgd, p, torch::full({1}, kInf));
  step_with(scaler, sgd, p, torch::ones(1));
  for (int i = 0; i < 2; ++i) step_with(scaler, sgd, p, torch::full({1}, kInf));
  EXPECT_TRUE(heard.messages().empty());
  for (int i = 0; i < 5; ++i) step_with(scaler, sgd, p, torch::full({1}, kInf));
  ASSERT_EQ(heard.messages().size(), 1U);
  EXPECT_THAT(heard.messages()[0], HasSubstr("3 steps in a row"));
}

TEST(GradScaler, RecordsTheNormWhenAsked) {
  const auto p = leaf({0, 0});
  torch::optim::SGD sgd({p}, 0.0);
  GradScaler scaler(GradScalerOptions{.init_scale = 2, .record_grad_norm = true});
  EXPECT_FLOAT_EQ(step_with(scaler, sgd, p, torch::tensor({6.F, 8.F})).grad_norm().value(), 5);
}

TEST(GradScaler, AmaxFollowsTheGradients) {
  const auto p = leaf({0, 0});
  torch::optim::SGD sgd({p}, 0.0);
  GradScaler scaler(GradScalerOptions{.init_scale = 4, .mode = ScaleMode::kAmax});
  step_with(scaler, sgd, p, torch::tensor({4.F, -2.F}));  // unscaled 1
  EXPECT_EQ(scaler.get_scale(), 16384);
}

// Two gradients of one row are one of their sum, as LibTorch's embedding makes them.
TEST(GradScaler, MeasuresSparseGradientsWithTheirDuplicatesSummed) {
  const auto p = leaf({0, 0, 0});
  torch::optim::SGD sgd({p}, 1.0);
  const auto twice = [](float value) {
    return at::sparse_coo_tensor(torch::tensor({{1, 1}}), torch::full({2}, value), {3});
  };
  GradScaler recording(GradScalerOptions{.init_scale = 2, .record_grad_norm = true});
  EXPECT_FLOAT_EQ(step_with(recording, sgd, p, twice(6)).grad_norm().value(), 6);  // 3 and 3
  EXPECT_TRUE(at::equal(p, torch::tensor({0.F, -6.F, 0.F})));
  GradScaler by_amax(GradScalerOptions{.init_scale = 4, .mode = ScaleMode::kAmax});
  step_with(by_amax, sgd, p, twice(2));  // unscaled 0.5 and 0.5
  EXPECT_EQ(by_amax.get_scale(), 16384) << "as of one gradient of 1";
  EXPECT_TRUE(at::equal(p, torch::tensor({0.F, -7.F, 0.F})));
}

TEST(GradScaler, AccumulationKeepsOneScaleForTheWindow) {
  const auto a = leaf({1}), b = leaf({1});
  torch::optim::SGD scaled({a}, 0.1), plain({b}, 0.1);
  GradScaler scaler(GradScalerOptions{.growth_interval = 1});
  for (int window = 0; window < 3; ++window) {
    for (int micro = 1; micro <= 4; ++micro) {
      scaler.scale((a * a).sum() * micro).backward();
      ((b * b).sum() * micro).backward();
    }
    scaler.step(scaled);
    scaler.update();
    plain.step();
    scaled.zero_grad();
    plain.zero_grad();
  }
  EXPECT_TRUE(at::equal(a, b));
  EXPECT_EQ(scaler.get_scale(), 65536 * 8);
}

}  // namespace
}  // namespace demi
