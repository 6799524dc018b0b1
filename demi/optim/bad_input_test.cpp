// Arguments that no training should pass to an optimizer, and some do: an error before anything is
// changed, or the right step.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cmath>
#include <limits>
#include <optional>

#include "demi/core/error.h"
#include "demi/optim/adamw.h"
#include "demi/optim/backend_testing.h"
#include "demi/optim/clip.h"
#include "demi/optim/sgd.h"
#include "demi/optim/testing.h"
#include "demi/step/emulated_device_testing.h"
#include "demi/step/pending_step.h"

namespace demi::optim {
namespace {

using namespace testing;
using ::testing::HasSubstr;
constexpr const char* kPaths[] = {"", "reference", "aten"};  // "": the best here

at::Tensor bits_of(const at::Tensor& fp32) { return fp32.detach().clone().view(at::kInt); }

TEST(BadInput, DenormalGradientsAreNotFlushed) {
  for (const char* path : kPaths) {
    const ScopedEnvironment forced("DEMI_KERNELS", path);
    for (const auto& [dtype, least] :
         {std::pair(at::kFloat, -149), {at::kHalf, -24}, {at::kBFloat16, -133}}) {
      const at::Tensor p = torch::zeros(40).requires_grad_();
      SGD sgd({p}, SGDOptions(1));
      const auto denormal = static_cast<float>(std::ldexp(1.0, least));
      set_grad(p, torch::full({40}, denormal).to(dtype));
      sgd.step();
      EXPECT_TRUE(at::equal(p.detach(), torch::full({40}, -denormal))) << path << dtype;
    }
  }
}

TEST(BadInput, ZerosKeepTheSignThatTorchGivesThem) {
  for (const char* path : kPaths) {
    const ScopedEnvironment forced("DEMI_KERNELS", path);
    const at::Tensor values = torch::tensor({0.F, 0.F, -0.F, -0.F});
    const at::Tensor p = values.clone().requires_grad_(), q = values.clone().requires_grad_();
    for (const auto& x : {p, q}) set_grad(x, torch::tensor({0.F, -0.F, 0.F, -0.F}));
    SGD({p}, SGDOptions(0.1)).step();
    torch::optim::SGD({q}, torch::optim::SGDOptions(0.1)).step();
    EXPECT_TRUE(at::equal(bits_of(p), bits_of(q))) << path << bits_of(p) << bits_of(q);
  }
}

TEST(BadInput, SquaresThatOverflowGoAsFarAsInTorch) {
  for (const char* path : kPaths) {
    const ScopedEnvironment forced("DEMI_KERNELS", path);
    const at::Tensor p = parameter({4}), q = parameter({4});
    AdamW mine({p}, AdamWOptions(0.1));
    torch::optim::AdamW theirs({q}, torch::optim::AdamWOptions(0.1));
    for (int step = 0; step < 3; ++step) {
      for (const auto& x : {p, q}) set_grad(x, torch::tensor({1e30F, -3e38F, 1e-30F, 1.F}));
      mine.step();
      theirs.step();
      EXPECT_FALSE(mine.last_step().skipped());
    }
    EXPECT_TRUE(at::allclose(p, q, 1e-6, 0)) << path;
  }
}

TEST(BadInput, NormsOfNumbersWhoseSquaresFp32DoesNotHold) {
  for (const char* path : kPaths) {
    const ScopedEnvironment forced("DEMI_KERNELS", path);
    for (const float unit : {1e30F, 1e-30F, 1e-40F}) {
      const at::Tensor p = parameter({2});
      SGD sgd({p}, SGDOptions(0));
      set_grad(p, torch::tensor({3 * unit, -4 * unit}));
      sgd.step();
      EXPECT_NEAR(sgd.last_step().grad_norm().value() / unit, 5, 1e-4) << path << unit;
    }
  }
}

TEST(BadInput, WithoutAnyGradientNothingHappens) {
  const at::Tensor p = parameter({2});
  AdamW adamw({p});
  adamw.step();
  EXPECT_FALSE(adamw.last_step().skipped());
  EXPECT_FALSE(adamw.last_step().grad_norm().has_value());
  EXPECT_EQ(adamw.state_tensors().at("taken").item<int64_t>(), 0);
  EXPECT_EQ(adamw.state_tensors().size(), 1U);
}

TEST(BadInput, EmptyTensorsAreStepped) {
  for (const char* path : kPaths) {
    const ScopedEnvironment forced("DEMI_KERNELS", path);
    const at::Tensor p = torch::zeros({0, 3}).requires_grad_(), q = torch::zeros({0}, at::kHalf);
    q.requires_grad_();
    AdamW adamw({p, q});
    for (int step = 1; step < 3; ++step) {
      set_grad(p, torch::zeros({0, 3}));
      set_grad(q, torch::zeros({0}, at::kHalf));
      adamw.pending().unscale_(at::scalar_tensor(2.F));
      EXPECT_EQ(clip_grad_norm_({p, q}, 1).item<float>(), 0);
      adamw.step();
      EXPECT_FALSE(adamw.last_step().skipped());
      EXPECT_EQ(adamw.state_tensors().at("0.step").item<int64_t>(), step) << path;
    }
  }
}

TEST(BadInput, AGroupWithoutParametersIsNoHindrance) {
  const at::Tensor p = torch::zeros(1).requires_grad_();
  std::vector<torch::optim::OptimizerParamGroup> groups;
  groups.emplace_back(std::vector<at::Tensor>{}, std::make_unique<SGDOptions>(5));
  groups.emplace_back(std::vector<at::Tensor>{p}, std::make_unique<SGDOptions>(2));
  groups.emplace_back(std::vector<at::Tensor>{}, std::make_unique<SGDOptions>(7));
  SGD sgd(groups, SGDOptions(1));
  for (int step = 1; step < 4; ++step) {
    set_grad(p, torch::ones(1));
    sgd.step();
    EXPECT_EQ(p.item<float>(), -2.F * static_cast<float>(step));
    static_cast<SGDOptions&>(sgd.param_groups()[2].options()).momentum(0.1 * step);
  }
}

TEST(BadInput, GradientsThatDoNotFitAreNamedBeforeAnythingChanges) {
  const at::Tensor p = parameter({2}), q = parameter({2});
  AdamW adamw({p, q});
  const auto refused = [&](const at::Tensor& gradient, const char* why) {
    set_grad(p, torch::ones(2));
    set_grad(q, gradient);
    EXPECT_THAT(complaint([&] { adamw.step(); }), HasSubstr(why));
    EXPECT_THAT(complaint([&] { adamw.pending().unscale_(at::scalar_tensor(2.F)); }),
                HasSubstr(why));
    EXPECT_TRUE(at::equal(p, parameter({2})));
    EXPECT_TRUE(at::equal(p.grad(), torch::ones(2)));
  };
  refused(torch::ones(2, at::kMeta), "another device");
  refused(torch::ones(2, at::kComplexFloat), "floating point");
  refused(torch::ones(2, at::kBool), "floating point");
  refused(torch::ones({1, 2}), "another shape");
  refused(torch::ones({}), "another shape");
  EXPECT_EQ(adamw.state_tensors().at("taken").item<int64_t>(), 0);
}

TEST(BadInput, GradientsOfRarerDtypesCountAsTheirValues) {
  for (const auto dtype : {at::kFloat8_e4m3fn, at::kDouble}) {
    const at::Tensor p = torch::zeros(3).requires_grad_();
    SGD sgd({p}, SGDOptions(1));
    set_grad(p, torch::tensor({1.5F, -0.25F, 448.F}).to(dtype));
    sgd.step();
    EXPECT_TRUE(at::equal(p.detach(), torch::tensor({-1.5F, 0.25F, -448.F}))) << dtype;
  }
}

TEST(BadInput, AnExpandedGradientIsTheDenseOneThatItStandsFor) {
  for (const auto dtype : {at::kFloat, at::kBFloat16}) {
    for (const bool unscaled : {true, false}) {
      const at::Tensor p = torch::zeros({2, 3}).requires_grad_();
      SGD sgd({p}, SGDOptions(1));
      const at::Tensor row = torch::tensor({2.F, 4.F, 6.F}).to(dtype);
      set_grad(p, row.expand({2, 3}));
      const at::Tensor scale = at::scalar_tensor(2.F);
      unscaled ? sgd.pending().unscale_(scale) : sgd.pending().set_scale(scale);
      sgd.step();
      EXPECT_TRUE(at::equal(p.detach(), torch::tensor({-1.F, -2.F, -3.F}).expand({2, 3})));
      EXPECT_EQ(row[2].item<float>(), 6);  // not divided behind its owner's back
    }
  }
}

TEST(BadInput, WrongParametersAreNamed) {
  const auto refused = [](const at::Tensor& p, const char* why) {
    EXPECT_THAT(complaint([&] { SGD({p}, SGDOptions(1)); }), HasSubstr(why));
  };
  refused(torch::zeros(2, at::kMeta), "no memory");
  refused(torch::zeros(2).to_sparse(), "not dense");
  refused(torch::zeros(2, at::kInt), "dtype");
  refused(torch::zeros(9).as_strided({3, 3}, {1, 1}), "share memory");
  refused(torch::zeros(9).as_strided({2, 3}, {4, 2}), "share memory");
}

// 0 2 4 / 3 5 7: the rows are interleaved, and no place is taken twice.
TEST(BadInput, ALayoutThatIsOnlyStrangeIsStepped) {
  const at::Tensor memory = torch::zeros(8);
  const at::Tensor p = memory.as_strided({2, 3}, {3, 2}).requires_grad_();
  SGD sgd({p}, SGDOptions(1));
  set_grad(p, torch::tensor({{1.F, 2.F, 3.F}, {4.F, 5.F, 6.F}}));
  sgd.step();
  EXPECT_TRUE(at::equal(memory, torch::tensor({-1.F, 0.F, -2.F, -4.F, -3.F, -5.F, 0.F, -6.F})));
}

TEST(BadInput, AParameterOfTwoGroupsIsRefusedAndTheOptimizerGoesOn) {
  const at::Tensor p = torch::zeros(1).requires_grad_(), q = torch::zeros(1).requires_grad_();
  std::vector<torch::optim::OptimizerParamGroup> groups;
  groups.emplace_back(std::vector<at::Tensor>{p});
  groups.emplace_back(std::vector<at::Tensor>{q, p});
  EXPECT_ANY_THROW(SGD(groups, SGDOptions(1)));
  SGD sgd({p}, SGDOptions(1));
  EXPECT_ANY_THROW(sgd.add_param_group(torch::optim::OptimizerParamGroup({q, p})));
  for (const auto& x : {p, q}) set_grad(x, torch::ones(1));
  sgd.step();
  EXPECT_EQ(p.item<float>(), -1);
  EXPECT_EQ(q.item<float>(), 0);
}

TEST(BadInput, AParameterOfTwoOptimizersIsSteppedByEachAndClippedByNeither) {
  const at::Tensor p = torch::zeros(1).requires_grad_();
  SGD first({p}, SGDOptions(1)), second({p}, SGDOptions(10));
  set_grad(p, torch::ones(1, at::kBFloat16));
  EXPECT_THAT(complaint([&] { clip_grad_norm_({p}, 0.5); }), HasSubstr("several demi optimizers"));
  EXPECT_THAT(complaint([&] { clip_grad_value_({p}, 0.5); }), HasSubstr("several demi optimizers"));
  first.step();
  second.step();
  EXPECT_EQ(p.item<float>(), -11);
  set_grad(p, torch::ones(1));  // an fp32 gradient is clipped in place
  clip_grad_norm_({p}, 0.5);
  EXPECT_NEAR(p.grad().item<float>(), 0.5, 1e-5);
}

TEST(BadInput, AScaleThatIsNoneIsRefused) {
  const at::Tensor p = torch::zeros(1).requires_grad_();
  SGD sgd({p}, SGDOptions(1));
  set_grad(p, torch::ones(1));
  for (const float bad : {0.F, -1.F, kInf, std::nanf(""), 1e-45F}) {
    EXPECT_THROW(sgd.pending().set_scale(at::scalar_tensor(bad)), UsageError) << bad;
    EXPECT_THROW(sgd.pending().unscale_(at::scalar_tensor(bad)), UsageError) << bad;
  }
  EXPECT_THROW(sgd.pending().set_scale(torch::ones(2)), UsageError);
  EXPECT_THROW(sgd.pending().set_scale(torch::ones(1, at::kDouble)), UsageError);
  EXPECT_EQ(p.grad().item<float>(), 1);
  sgd.step();  // without a scale
  EXPECT_EQ(p.item<float>(), -1);
}

// A device's scale is not read: the step is skipped there.
TEST(BadInput, AScaleThatIsNoneSkipsTheStepOfADevice) {
  for (const bool joined : {false, true}) {
    const EmulatedDevice device;
    const at::Tensor p = torch::zeros(1).requires_grad_();
    const at::Tensor q = torch::zeros(1, at::kDouble).requires_grad_();
    On<SGD> sgd(device, {p, q}, SGDOptions(1), {.skip_nonfinite = false});
    for (const float bad : {0.F, -1.F, kInf, std::nanf("")}) {
      set_grad(p, torch::ones(1));
      if (joined) set_grad(q, torch::ones(1, at::kDouble));
      sgd.pending().set_scale(at::scalar_tensor(bad));
      sgd.step();
      EXPECT_TRUE(sgd.last_step().skipped()) << joined << bad;
      EXPECT_EQ(p.item<float>(), 0) << joined << bad;
      EXPECT_EQ(q.item<double>(), 0) << joined << bad;
    }
    EXPECT_EQ(sgd.state_tensors().at("taken").item<int64_t>(), 0);
  }
}

TEST(BadInput, RatesOutOfRangeAreRefused) {
  const at::Tensor p = torch::zeros(1).requires_grad_();
  SGD sgd({p}, SGDOptions(1));
  for (const double bad : {-1.0, std::nan(""), static_cast<double>(kInf)})
    EXPECT_THROW(sgd.set_scheduled_rates(0, {0.5, bad}), UsageError) << bad;
  EXPECT_THROW(sgd.set_scheduled_rates(1, {0.5}), UsageError);
  set_grad(p, torch::ones(1));
  sgd.step();
  EXPECT_EQ(p.item<float>(), -1);
}

TEST(BadInput, LimitsOutOfRangeAreRefused) {
  const at::Tensor p = torch::zeros(1).requires_grad_();
  SGD sgd({p}, SGDOptions(1));
  set_grad(p, torch::ones(1));
  for (const double bad : {-1.0, std::nan("")}) {
    EXPECT_THROW(sgd.pending().clip_norm(bad), UsageError) << bad;
    EXPECT_THROW(sgd.pending().clip_value({p}, bad), UsageError) << bad;
  }
  sgd.step();
  EXPECT_EQ(p.item<float>(), -1);
}

TEST(BadInput, CountsThatAreNoneAreRefusedWhole) {
  const at::Tensor p = parameter({2});
  AdamW adamw({p});
  set_grad(p, torch::ones(2));
  adamw.step();
  const auto before = adamw.state_tensors();
  for (const char* name : {"taken", "0.step"}) {
    for (const at::Tensor& bad : {at::scalar_tensor(-1, at::kLong), torch::ones(2, at::kLong)}) {
      auto broken = before;
      broken["0.exp_avg"] = torch::ones(2);
      broken[name] = bad;
      EXPECT_THROW(adamw.load_state_tensors(broken), UsageError) << name;
      for (const auto& [key, tensor] : adamw.state_tensors())
        EXPECT_TRUE(at::equal(tensor, before.at(key))) << name << key;
    }
  }
}

}  // namespace
}  // namespace demi::optim
