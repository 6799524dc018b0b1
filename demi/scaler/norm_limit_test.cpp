// Steps that are skipped for the norm of their gradients, on the host and on an emulated device.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>
#include <sstream>
#include <vector>

#include "demi/optim/adamw.h"
#include "demi/optim/backend_testing.h"
#include "demi/optim/clip.h"
#include "demi/optim/ema.h"
#include "demi/optim/sgd.h"
#include "demi/optim/testing.h"
#include "demi/scaler/backend_testing.h"
#include "demi/scaler/grad_scaler.h"
#include "demi/schedule/lr_scheduler.h"
#include "demi/step/emulated_device_testing.h"

namespace demi {
namespace {

using optim::NormLimit;
using optim::testing::EmulatedDevice;
using optim::testing::kInf;
using optim::testing::On;
using optim::testing::parameter;
using testing::ScalerOn;

constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

/// Gradients of this L2 norm, with the scale on.
void set_norm(GradScaler& scaler, const at::Tensor& p, double norm) {
  const float scale = scaler.scale(torch::ones({})).item<float>();
  p.mutable_grad() = at::full_like(p, norm * scale / std::sqrt(static_cast<double>(p.numel())),
                                   at::TensorOptions(at::kFloat));
}

class ByNorm : public ::testing::TestWithParam<bool> {
 protected:
  const optim::Backend& backend() const {
    return GetParam() ? static_cast<const optim::Backend&>(device_) : optim::machine_backend();
  }
  optim::StepOptions options(NormLimit limit) const { return {.skip_norm_above = limit}; }

  EmulatedDevice device_;
};

INSTANTIATE_TEST_SUITE_P(Scaler, ByNorm, ::testing::Bool(),
                         [](const auto& one) { return one.param ? "OnADevice" : "OnTheHost"; });

TEST_P(ByNorm, ASkippedStepChangesNothingAndTheScaleDoesNotHearOfIt) {
  const at::Tensor p = parameter({4});
  On<optim::AdamW> adamw(backend(), {p}, optim::AdamWOptions(0.01), options({.bound = 5}));
  ScalerOn scaler(backend(), {.init_scale = 8, .growth_interval = 3});
  const auto step = [&](double norm) {
    set_norm(scaler, p, norm);
    const StepResult result = scaler.step(adamw);
    scaler.update();
    return result;
  };
  EXPECT_EQ(step(1).reason(), SkipReason::kNone);
  EXPECT_EQ(step(1).reason(), SkipReason::kNone);
  const at::Tensor before = p.detach().clone();
  for (int i = 0; i < 5; ++i) {
    const StepResult skipped = step(10);
    EXPECT_TRUE(skipped.skipped());
    EXPECT_EQ(skipped.reason(), SkipReason::kNorm);
    EXPECT_FLOAT_EQ(static_cast<float>(*skipped.grad_norm()), 10);
    EXPECT_EQ(skipped.found_inf().item<float>(), 1) << "for averages and statistics";
  }
  EXPECT_TRUE(at::equal(p, before));
  EXPECT_EQ(scaler.get_scale(), 8);
  EXPECT_EQ(scaler.get_growth_tracker(), 2);
  EXPECT_EQ(scaler.get_skipped_steps(), 0);
  EXPECT_EQ(adamw.state_tensors().at("taken").item<int64_t>(), 2);
  EXPECT_EQ(step(1).reason(), SkipReason::kNone);
  EXPECT_EQ(scaler.get_scale(), 16) << "the third clean step";
  EXPECT_EQ(step(kInf).reason(), SkipReason::kNonfinite);
  EXPECT_EQ(scaler.get_scale(), 8);
  EXPECT_EQ(scaler.get_skipped_steps(), 1);
}

TEST_P(ByNorm, TheNormIsUnscaledAndNotClipped) {
  const at::Tensor p = parameter({4});
  On<optim::SGD> sgd(backend(), {p}, optim::SGDOptions(1), options({.bound = 5}));
  ScalerOn scaler(backend(), {.init_scale = 1024});
  for (const double norm : {4.0, 6.0}) {
    set_norm(scaler, p, norm);
    scaler.unscale_(sgd);
    optim::clip_grad_norm_({p}, 1);
    optim::clip_grad_value_({p}, 0.1);
    EXPECT_EQ(scaler.step(sgd).skipped(), norm > 5);
    scaler.update();
  }
}

TEST_P(ByNorm, WithoutAScalerAndWithoutChecksItIsTheSame) {
  for (const bool checks : {true, false}) {
    const at::Tensor p = parameter({4});
    On<optim::SGD> sgd(backend(), {p}, optim::SGDOptions(1),
                       {.skip_nonfinite = checks, .skip_norm_above = NormLimit{.bound = 5}});
    const at::Tensor before = p.detach().clone();
    p.mutable_grad() = at::full({4}, 3.F);
    sgd.step();
    EXPECT_EQ(sgd.last_step().reason(), SkipReason::kNorm);
    EXPECT_TRUE(at::equal(p, before));
    p.mutable_grad() = at::full({4}, 2.F);
    sgd.step();
    EXPECT_FALSE(sgd.last_step().skipped());
    EXPECT_FALSE(at::equal(p, before));
    p.mutable_grad() = at::full({4}, kNaN);
    sgd.step();
    EXPECT_EQ(sgd.last_step().skipped(), checks) << "NaN is taken without checks";
  }
}

TEST_P(ByNorm, OneDecisionForAllThatStepTogether) {
  const at::Tensor p = parameter({1}), q = parameter({1}), r = parameter({1});
  const at::Tensor before = r.detach().clone();
  On<optim::SGD> limited(backend(), {p}, optim::SGDOptions(1), options({.bound = 12.9}));
  On<optim::SGD> plain(backend(), {q}, optim::SGDOptions(1));
  torch::optim::SGD foreign({r}, torch::optim::SGDOptions(1));
  ScalerOn scaler(backend(), {.init_scale = 4, .growth_interval = 2});
  const auto step = [&](double of_foreign) {
    set_norm(scaler, p, 3);
    set_norm(scaler, q, 4);
    set_norm(scaler, r, of_foreign);
    const auto results = scaler.step({&plain, &foreign, &limited});
    scaler.update();
    return results;
  };
  for (const StepResult& result : step(12)) EXPECT_EQ(result.reason(), SkipReason::kNorm);
  EXPECT_TRUE(at::equal(r, before)) << "3, 4 and 12 are 13";
  EXPECT_EQ(scaler.get_growth_tracker(), 0);
  for (const StepResult& result : step(11)) EXPECT_FALSE(result.skipped());
  EXPECT_FALSE(at::equal(r, before));
  for (const StepResult& result : step(kInf)) EXPECT_EQ(result.reason(), SkipReason::kNonfinite);
  EXPECT_EQ(scaler.get_scale(), 2);
}

// Duplicates of 3 and 3 are a gradient of 6, and not a norm of 4.2.
TEST_P(ByNorm, SparseGradientsOfOthersCountWithTheirDuplicatesSummed) {
  for (const bool enabled : {true, false}) {
    const at::Tensor p = parameter({1}), r = parameter({3});
    On<optim::SGD> limited(backend(), {p}, optim::SGDOptions(1), options({.bound = 5}));
    torch::optim::SGD foreign({r}, torch::optim::SGDOptions(1));
    ScalerOn scaler(backend(), {.init_scale = 4, .enabled = enabled});
    for (const float each : {3.F, 2.F}) {
      set_norm(scaler, p, 0.5);
      const float scale = scaler.scale(torch::ones({})).item<float>();
      r.mutable_grad() =
          at::sparse_coo_tensor(torch::tensor({{1, 1}}), torch::full({2}, each * scale), {3});
      scaler.decide_by_norm({&limited, &foreign});
      EXPECT_EQ(scaler.step(foreign).skipped(), each == 3) << enabled;
      EXPECT_EQ(scaler.step(limited).skipped(), each == 3) << enabled;
      scaler.update();
    }
  }
}

TEST_P(ByNorm, OptimizersOfOneCallEachDecideAloneUnlessAskedTo) {
  for (const bool enabled : {true, false}) {
    const at::Tensor p = parameter({1}), q = parameter({1}), r = parameter({1});
    On<optim::SGD> one(backend(), {p}, optim::SGDOptions(1), options({.bound = 4.5}));
    On<optim::SGD> two(backend(), {q}, optim::SGDOptions(1));
    torch::optim::SGD foreign({r}, torch::optim::SGDOptions(1));
    ScalerOn scaler(backend(), {.init_scale = 4, .enabled = enabled});
    for (const bool asked : {false, true, false}) {
      SCOPED_TRACE(::testing::Message() << enabled << asked);
      set_norm(scaler, p, 3);
      set_norm(scaler, q, 4);
      set_norm(scaler, r, 1);
      if (asked) scaler.decide_by_norm({&one, &two, &foreign});
      const at::Tensor before = r.detach().clone();
      EXPECT_EQ(scaler.step(two).skipped(), asked);
      EXPECT_EQ(scaler.step(foreign).skipped(), asked);
      EXPECT_EQ(scaler.step(one).skipped(), asked);
      EXPECT_EQ(at::equal(r, before), asked);
      scaler.update();
    }
  }
}

// Before clipping, which shrinks the norms: what was decided counts for a step of several, too.
TEST_P(ByNorm, AStepOfSeveralKeepsWhatWasDecided) {
  for (const bool enabled : {true, false}) {
    const at::Tensor p = parameter({1}), q = parameter({1});
    On<optim::SGD> one(backend(), {p}, optim::SGDOptions(1), options({.bound = 4.5}));
    torch::optim::SGD foreign({q}, torch::optim::SGDOptions(1));
    ScalerOn scaler(backend(), {.init_scale = 4, .enabled = enabled});
    for (const bool asked : {true, false}) {
      SCOPED_TRACE(::testing::Message() << enabled << asked);
      set_norm(scaler, p, 3);
      set_norm(scaler, q, 4);
      if (enabled) {
        scaler.unscale_(one);
        scaler.unscale_(foreign);
      }
      if (asked) scaler.decide_by_norm({&one, &foreign});
      optim::clip_grad_value_({p}, 1);
      torch::nn::utils::clip_grad_value_({q}, 1);
      for (const StepResult& result : scaler.step({&one, &foreign}))
        EXPECT_EQ(result.reason(), asked ? SkipReason::kNorm : SkipReason::kNone);
      scaler.update();
    }
  }
}

// Norms of 1 to 1.5 and one of 4 now and then, whatever wrote them.
std::vector<bool> skips_of(optim::Optimizer& optimizer, GradScaler& scaler, const at::Tensor& p,
                           int from, int to) {
  std::vector<StepResult> results;
  for (int i = from; i < to; ++i) {
    set_norm(scaler, p, i % 20 == 19 ? 4 : 1.25 + 0.25 * std::sin(i * 0.9));
    results.push_back(scaler.step(optimizer));
    scaler.update();
  }
  std::vector<bool> all;
  for (const StepResult& one : results) all.push_back(one.reason() == SkipReason::kNorm);
  return all;
}

TEST_P(ByNorm, ByDeviationsItIsThatOfTheHostAndGoesOnWhereItWasSaved) {
  const auto make = [](const optim::Backend& on, const at::Tensor& p) {
    return std::make_unique<On<optim::SGD>>(
        on, std::vector{p}, optim::SGDOptions(0.1).momentum(0.9),
        optim::StepOptions{.skip_norm_above = NormLimit{.deviations = 3}});
  };
  const at::Tensor p = parameter({9}), q = parameter({9});
  const auto whole = make(optim::machine_backend(), p), first = make(backend(), q);
  GradScaler of_whole;
  ScalerOn of_parts(backend());
  const auto expected = skips_of(*whole, of_whole, p, 0, 260);
  EXPECT_GE(std::count(expected.begin(), expected.end(), true), 5);
  std::vector<bool> seen = skips_of(*first, of_parts, q, 0, 150);
  for (const bool archived : {false, true}) {
    const at::Tensor r = q.detach().clone().requires_grad_();
    const auto second = make(backend(), r);
    if (archived) {
      std::stringstream file;
      torch::save(*first, file);
      torch::load(*second, file);
    } else {
      second->load_state_tensors(first->state_tensors());
    }
    std::vector<bool> all = seen;
    const auto rest = skips_of(*second, of_parts, r, 150, 260);
    all.insert(all.end(), rest.begin(), rest.end());
    EXPECT_EQ(all, expected) << archived;
  }
  optim::SGD without({parameter({9})}, optim::SGDOptions(0.1).momentum(0.9));
  without.load_state_tensors(first->state_tensors());
  EXPECT_FALSE(without.state_tensors().contains("accepted_norms"));
}

TEST_P(ByNorm, AveragesAndSchedulesFollowAsWithAnySkip) {
  torch::nn::Linear model(torch::nn::LinearOptions(4, 1).bias(false));
  const at::Tensor p = model->weight;
  On<optim::SGD> sgd(backend(), {p}, optim::SGDOptions(1), options({.bound = 5}));
  EMA average(*model, 0.5);
  optim::lr::Scheduler schedule(sgd, optim::lr::exponential(0.5));
  const at::Tensor before = average.averages().begin()->second.clone();
  p.mutable_grad() = at::full({1, 4}, 3.F);
  sgd.step();
  average.update(sgd.last_step());
  schedule.step(sgd.last_step());
  EXPECT_TRUE(at::equal(average.averages().begin()->second, before));
  EXPECT_EQ(sgd.param_groups()[0].options().get_lr(), 1);
}

TEST_P(ByNorm, GradientsThatAreOthersAreDecidedAnew) {
  const at::Tensor p = parameter({1});
  On<optim::SGD> sgd(backend(), {p}, optim::SGDOptions(1), options({.bound = 5}));
  ScalerOn scaler(backend(), {.init_scale = 4});
  set_norm(scaler, p, 6);
  scaler.decide_by_norm({&sgd});
  p.mutable_grad() = torch::full({1}, 4.F);
  EXPECT_FALSE(scaler.step(sgd).skipped());
  scaler.update();
  set_norm(scaler, p, 6);
  scaler.decide_by_norm({&sgd});
  scaler.update();  // without the step
  EXPECT_EQ(scaler.get_growth_tracker(), 2) << "nothing was skipped";
  set_norm(scaler, p, 1);
  EXPECT_FALSE(scaler.step(sgd).skipped());
}

}  // namespace
}  // namespace demi
