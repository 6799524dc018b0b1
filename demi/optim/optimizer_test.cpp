#include "demi/optim/optimizer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cmath>
#include <sstream>

#include "demi/core/error.h"
#include "demi/optim/clip.h"
#include "demi/optim/kinds_testing.h"
#include "demi/optim/testing.h"
#include "demi/step/pending_step.h"

namespace demi::optim {
namespace {

using namespace testing;
using ::testing::HasSubstr;

at::Tensor scale_of(double value) { return at::scalar_tensor(value, at::kFloat); }

/// Everything that a step could change.
std::vector<at::Tensor> everything(const Optimizer& optimizer) {
  std::vector<at::Tensor> all;
  for (const auto& group : optimizer.param_groups())
    for (const auto& p : group.params()) all.push_back(p.detach().clone());
  for (const auto& [name, tensor] : optimizer.state_tensors()) all.push_back(tensor.clone());
  return all;
}

bool same_bits(const std::vector<at::Tensor>& a, const std::vector<at::Tensor>& b) {
  if (a.size() != b.size()) return false;
  for (size_t i = 0; i < a.size(); ++i)
    if (!at::equal(a[i], b[i])) return false;
  return true;
}

TEST(Optimizer, ASkippedStepChangesNothingAtAll) {
  for (const Kind& kind : kKinds) {
    SCOPED_TRACE(kind.name);
    for (const auto dtype : {at::kFloat, at::kHalf, at::kBFloat16}) {
      const at::Tensor p = parameter({3, 5}, dtype), q = parameter({7}, at::kFloat);
      auto optimizer = kind.make({p, q});
      for (int step = 0; step < 2; ++step) {
        set_grad(p, gradient(p, dtype, step));
        set_grad(q, gradient(q, at::kBFloat16, step));
        optimizer->step();
        EXPECT_FALSE(optimizer->last_step().skipped());
      }
      const auto before = everything(*optimizer);
      for (const float bad : {kInf, -kInf, std::nanf("")}) {
        q.grad().data()[6] = bad;
        optimizer->step();
        EXPECT_TRUE(optimizer->last_step().skipped());
        EXPECT_TRUE(same_bits(before, everything(*optimizer))) << dtype;
      }
      set_grad(q, gradient(q, at::kBFloat16, 2));
      optimizer->step();
      EXPECT_FALSE(same_bits(before, everything(*optimizer)));
    }
  }
}

TEST(Optimizer, WithoutTheCheckAnInfGoesThroughAsInTorch) {
  const at::Tensor p = parameter({2});
  SGD sgd({p}, SGDOptions(0.1), {.skip_nonfinite = false});
  set_grad(p, torch::tensor({1.F, kInf}));
  sgd.step();
  EXPECT_TRUE(std::isinf(p[1].item<float>()));
  EXPECT_FALSE(sgd.last_step().grad_norm().has_value());
  set_grad(p, torch::tensor({1.F, kInf}));
  sgd.pending().set_scale(scale_of(2));  // with a scaler it decides
  sgd.step();
  EXPECT_TRUE(sgd.last_step().skipped());
}

// The same numbers in whatever dtype the gradient comes, and in 16-bit parameters through their
// masters.
TEST(Optimizer, GradientsOfEveryWidthGiveTheSameStep) {
  for (const Kind& kind : kKinds) {
    SCOPED_TRACE(kind.name);
    const at::Tensor wide = parameter({4, 3}), narrow = parameter({4, 3});
    auto a = kind.make({wide}), b = kind.make({narrow});
    for (int step = 0; step < 5; ++step) {
      set_grad(narrow, gradient(narrow, at::kBFloat16, step));
      set_grad(wide, narrow.grad().to(at::kFloat));
      a->step();
      b->step();
    }
    EXPECT_TRUE(same_bits(everything(*a), everything(*b)));
  }
}

TEST(Optimizer, SixteenBitParametersFollowTheirMasters) {
  for (const auto dtype : {at::kHalf, at::kBFloat16}) {
    const at::Tensor p = parameter({100}, dtype);
    const at::Tensor twin = p.detach().to(at::kFloat).requires_grad_();
    SGD small({p}, SGDOptions(1e-5)), exact({twin}, SGDOptions(1e-5));
    for (int step = 0; step < 50;
         ++step) {  // each update is far under half a unit of the parameter
      set_grad(p, gradient(p, dtype, step));
      set_grad(twin, p.grad().to(at::kFloat));
      small.step();
      exact.step();
    }
    EXPECT_TRUE(at::equal(small.state_tensors().at("0.master"), twin.detach()));
    EXPECT_TRUE(at::equal(p.detach(), twin.detach().to(dtype)));

    const at::NoGradGuard
        no_grad;  // the user writes one element: the master follows there and nowhere else
    p[3] = 5;
    twin[3] = 5;
    set_grad(p, gradient(p, dtype, 1));
    set_grad(twin, p.grad().to(at::kFloat));
    small.step();
    exact.step();
    EXPECT_TRUE(at::equal(small.state_tensors().at("0.master"), twin.detach()));
  }
}

TEST(Optimizer, AScaleIsDividedOutBitForBit) {
  for (const Kind& kind : kKinds) {
    SCOPED_TRACE(kind.name);
    const at::Tensor p = parameter({9}), q = parameter({9});
    auto scaled = kind.make({p}), plain = kind.make({q});
    for (int step = 0; step < 4; ++step) {
      set_grad(q, gradient(q, at::kFloat, step));
      set_grad(p, q.grad() * 1024);
      if (step % 2)
        scaled->pending().unscale_(scale_of(1024));
      else
        scaled->pending().set_scale(scale_of(1024));
      EXPECT_EQ(at::equal(p.grad(), q.grad()), step % 2 == 1);  // in place
      scaled->step();
      plain->step();
      EXPECT_EQ(scaled->last_step().scale(), 1024);
      EXPECT_EQ(scaled->last_step().grad_norm(), plain->last_step().grad_norm());
    }
    EXPECT_TRUE(same_bits(everything(*scaled), everything(*plain)));
  }
}

TEST(Optimizer, SixteenBitGradientsStayScaledUntilTheStep) {
  const at::Tensor p = parameter({4}), q = parameter({3});
  SGD sgd({p, q}, SGDOptions(1));
  const at::Tensor p0 = p.detach().clone(), q0 = q.detach().clone();
  const at::Tensor tiny =
      torch::full({4}, 1e-3F).to(at::kHalf);  // / 65,536 is under fp16's least number
  set_grad(p, tiny.clone());
  set_grad(q, torch::full({3}, 65536.F));
  sgd.pending().unscale_(scale_of(65536));
  EXPECT_TRUE(at::equal(p.grad(), tiny));
  EXPECT_TRUE(at::equal(q.grad(), torch::ones({3})));
  const at::Tensor expected = tiny.to(at::kFloat) / 65536;
  EXPECT_TRUE(at::equal(sgd.unscaled_grad(p), expected));
  EXPECT_TRUE(at::equal(sgd.unscaled_grad(q), torch::ones({3})));
  EXPECT_NEAR(sgd.pending().grad_norm().item<float>(), std::sqrt(3.0), 1e-6);
  sgd.step();
  EXPECT_TRUE(at::equal(p.detach(), p0 - expected));
  EXPECT_TRUE(at::equal(q.detach(), q0 - 1));
}

TEST(Optimizer, AGradientThatChangedIsMeasuredAgain) {
  const at::Tensor p = parameter({4});
  SGD sgd({p}, SGDOptions(1));
  set_grad(p, torch::ones(4));
  sgd.pending().set_scale(scale_of(1));
  sgd.pending().measure();
  p.grad().mul_(kInf);
  sgd.step();
  EXPECT_TRUE(sgd.last_step().skipped());
}

TEST(Optimizer, OtherLayoutsGiveTheSameStep) {
  for (const char* path : {"reference", "aten"}) {
    const ScopedEnvironment forced("DEMI_KERNELS", path);
    for (const Kind& kind : kKinds) {
      SCOPED_TRACE(kind.name);
      const auto values = parameter({2, 3, 4, 5}).detach();
      const at::Tensor plain = values.clone().requires_grad_();
      const at::Tensor last = values.clone(at::MemoryFormat::ChannelsLast).requires_grad_();
      const at::Tensor strided =
          at::zeros({2, 3, 4, 10}).slice(3, 0, 10, 2).copy_(values).requires_grad_();
      auto optimizer = kind.make({plain, last, strided});
      for (int step = 0; step < 3; ++step) {
        const at::Tensor g = gradient(plain, at::kFloat, step);
        set_grad(plain, g.contiguous(at::MemoryFormat::ChannelsLast));
        set_grad(last, step % 2 ? g : g.contiguous(at::MemoryFormat::ChannelsLast));
        set_grad(strided, g);
        optimizer->step();
      }
      EXPECT_TRUE(at::equal(plain, last)) << path;
      EXPECT_TRUE(at::equal(plain, strided)) << path;
    }
  }
}

TEST(Optimizer, ALayoutThatChangesTakesItsStateAlong) {
  const at::Tensor p = parameter({2, 3, 4, 5}), q = parameter({2, 3, 4, 5});
  AdamW a({p}), b({q});
  for (int step = 0; step < 4; ++step) {
    if (step == 2) p.set_data(p.detach().contiguous(at::MemoryFormat::ChannelsLast));
    set_grad(p, gradient(p, at::kFloat, step));
    set_grad(q, gradient(q, at::kFloat, step));
    a.step();
    b.step();
  }
  EXPECT_TRUE(at::equal(p, q));
}

TEST(Optimizer, SparseGradientsCountAsTheDenseOnesTheyStandFor) {
  const at::Tensor p = parameter({4, 2}), q = parameter({4, 2});
  AdamW a({p}), b({q});
  const at::Tensor indices = torch::tensor({{1, 3, 1}}),
                   rows = torch::ones({3, 2}, at::kHalf) * 40000;
  set_grad(p, at::sparse_coo_tensor(indices, rows,
                                    {4, 2}));  // the duplicates' sum, 80,000, is Inf in fp16
  set_grad(q, at::sparse_coo_tensor(indices, rows.to(at::kFloat), {4, 2}).to_dense());
  a.step();
  b.step();
  EXPECT_FALSE(a.last_step().skipped());
  EXPECT_TRUE(at::equal(p, q));
}

TEST(Optimizer, MissingAndEmptyGradientsAreLeftAlone) {
  const at::Tensor p = parameter({2}), q = parameter({2}),
                   none = torch::zeros({0}).requires_grad_();
  AdamW adam({p, q, none});
  adam.step();
  const at::Tensor before = q.detach().clone();
  set_grad(p, torch::ones(2));
  set_grad(none, torch::zeros({0}));
  adam.step();
  EXPECT_TRUE(at::equal(q, before));
  EXPECT_EQ(adam.state_tensors().count("1.step"), 0U);
  set_grad(q, torch::ones(2));
  set_grad(p, {});
  adam.step();
  EXPECT_EQ(adam.state_tensors().at("0.step").item<int64_t>(), 1);
  EXPECT_EQ(adam.state_tensors().at("1.step").item<int64_t>(), 1);
  EXPECT_EQ(adam.state_tensors().at("taken").item<int64_t>(), 2);
}

TEST(Optimizer, ExtremeNumbers) {
  const at::Tensor p = parameter({4});
  SGD sgd({p}, SGDOptions(0));
  set_grad(p, torch::tensor({3e38F, -3e38F, 1e-45F, -0.F}));  // squares overflow fp32
  sgd.step();
  EXPECT_FALSE(sgd.last_step().skipped());
  set_grad(p, torch::full({4}, 3e38F).to(at::kBFloat16));
  sgd.step();
  EXPECT_FALSE(sgd.last_step().skipped());
  EXPECT_TRUE(std::isinf(sgd.last_step().grad_norm().value_or(0)) ||
              sgd.last_step().grad_norm().value_or(0) > 3e38);
}

TEST(Optimizer, TensorOperationsAgreeWithTheReference) {
  for (const Kind& kind : kKinds) {
    SCOPED_TRACE(kind.name);
    std::vector<std::vector<at::Tensor>> seen;
    for (const char* path : {"reference", "aten"}) {
      const ScopedEnvironment forced("DEMI_KERNELS", path);
      const at::Tensor p = parameter({33}), q = parameter({4, 5}, at::kBFloat16);
      auto optimizer = kind.make({p, q});
      for (int step = 0; step < 4; ++step) {
        set_grad(p, gradient(p, at::kBFloat16, step) * 8);
        set_grad(q, gradient(q, at::kBFloat16, step) * 8);
        optimizer->pending().set_scale(scale_of(8));
        optimizer->pending().clip_norm(0.5);
        optimizer->step();
      }
      seen.push_back(everything(*optimizer));
    }
    // LAMB's norms are summed in another order.
    const double tolerance = kind.id == KindId::kLamb ? 1e-6 : 0;
    for (size_t i = 0; i < seen[0].size(); ++i)
      EXPECT_TRUE(at::allclose(seen[0][i], seen[1][i], tolerance, tolerance)) << i;
  }
}

TEST(Optimizer, Fp64GoesThroughTensorOperations) {
  const at::Tensor p = parameter({5}, at::kDouble), q = parameter({5}, at::kDouble);
  SGD mine({p}, SGDOptions(0.5));
  torch::optim::SGD theirs({q}, torch::optim::SGDOptions(0.5));
  for (const auto& x : {p, q}) set_grad(x, gradient(x, at::kDouble, 1));
  mine.step();
  theirs.step();
  EXPECT_TRUE(at::allclose(p, q, 0, 1e-15));
}

TEST(Optimizer, GroupsHaveNumbersOfTheirOwnAlsoWhenAddedLater) {
  const at::Tensor a = torch::zeros(1).requires_grad_(), b = torch::zeros(1).requires_grad_(),
                   c = torch::zeros(1).requires_grad_();
  std::vector<torch::optim::OptimizerParamGroup> groups;
  groups.emplace_back(std::vector<at::Tensor>{a});
  groups.emplace_back(std::vector<at::Tensor>{b}, std::make_unique<SGDOptions>(2));
  SGD sgd(groups, SGDOptions(1));
  for (const auto& p : {a, b, c}) set_grad(p, torch::ones(1));
  sgd.step();
  sgd.add_param_group(torch::optim::OptimizerParamGroup({c}, std::make_unique<SGDOptions>(3)));
  sgd.param_groups()[0].options().set_lr(10);
  for (const auto& p : {a, b, c}) set_grad(p, torch::ones(1));
  sgd.step();
  EXPECT_EQ(a.item<float>(), -11);
  EXPECT_EQ(b.item<float>(), -4);
  EXPECT_EQ(c.item<float>(), -3);
}

// torch.optim.SGD: the buffer starts as the first gradient that it sees, and rests while momentum
// is off.
TEST(Optimizer, MomentumMayBeSwitchedOnAndOffAsInTorch) {
  const at::Tensor p = parameter({5}), q = parameter({5});
  SGD mine({p}, SGDOptions(0.1));
  torch::optim::SGD theirs({q}, torch::optim::SGDOptions(0.1));
  const std::vector<double> momenta{0, 0.9, 0.9, 0, 0, 0.9};
  for (size_t step = 0; step < momenta.size(); ++step) {
    static_cast<SGDOptions&>(mine.param_groups()[0].options()).momentum(momenta[step]);
    static_cast<torch::optim::SGDOptions&>(theirs.param_groups()[0].options())
        .momentum(momenta[step]);
    for (const auto& x : {p, q}) set_grad(x, gradient(x, at::kFloat, static_cast<int>(step)));
    mine.step();
    theirs.step();
    EXPECT_TRUE(at::allclose(p, q, 0, 1e-6)) << step;
  }
}

// Reddi et al. 2018: the greatest second moment since amsgrad was switched on.
TEST(Optimizer, AmsgradMayBeSwitchedOnLate) {
  const at::Tensor p = parameter({1}), q = parameter({1});
  AdamW mine({p}, AdamWOptions(0.1));
  torch::optim::AdamW theirs({q}, torch::optim::AdamWOptions(0.1));
  const std::vector<float> gradients{4, 1, 1, 0.5, 0.1F};
  for (size_t step = 0; step < gradients.size(); ++step) {
    static_cast<AdamWOptions&>(mine.param_groups()[0].options()).amsgrad(step >= 2);
    if (step == 2) {
      static_cast<torch::optim::AdamWOptions&>(theirs.param_groups()[0].options()).amsgrad(true);
      static_cast<torch::optim::AdamWParamState&>(*theirs.state().at(q.unsafeGetTensorImpl()))
          .max_exp_avg_sq(torch::zeros(1));
    }
    for (const auto& x : {p, q}) set_grad(x, torch::full({1}, gradients[step]));
    mine.step();
    theirs.step();
    EXPECT_TRUE(at::allclose(p, q, 0, 1e-6)) << step;
  }
}

TEST(Optimizer, AGroupAddedThroughTheBaseClassIsSeenToo) {
  const at::Tensor a = torch::zeros(1).requires_grad_(), b = torch::zeros(1).requires_grad_();
  SGD sgd({a}, SGDOptions(1));
  static_cast<torch::optim::Optimizer&>(sgd).add_param_group(
      torch::optim::OptimizerParamGroup({b}));
  for (const auto& p : {a, b}) set_grad(p, torch::ones(1).to(at::kBFloat16));
  sgd.step();
  EXPECT_EQ(b.item<float>(), -1);
}

TEST(Optimizer, GoesOnAfterSaveAndLoadAsIfNothingHadHappened) {
  for (const Kind& kind : kKinds) {
    SCOPED_TRACE(kind.name);
    for (const bool archive : {true, false}) {
      const at::Tensor p = parameter({6}), h = parameter({6}, at::kHalf), q = parameter({6}),
                       g = parameter({6}, at::kHalf);
      auto whole = kind.make({p, h}), broken = kind.make({q, g});
      for (int step = 0; step < 6; ++step) {
        for (const auto& x : {p, q}) set_grad(x, gradient(x, at::kBFloat16, step));
        for (const auto& x : {h, g}) set_grad(x, gradient(x, at::kHalf, step));
        whole->step();
        broken->step();
        if (step != 2) continue;
        auto loaded = kind.make({q, g});
        loaded->param_groups()[0].options().set_lr(archive ? 5 : 0.1);
        if (archive) {
          std::stringstream file;
          torch::save(*broken, file);
          torch::load(*loaded, file);
        } else {
          loaded->load_state_tensors(broken->state_tensors());
        }
        broken = std::move(loaded);
      }
      EXPECT_TRUE(same_bits(everything(*whole), everything(*broken))) << archive;
    }
  }
}

TEST(Optimizer, AStateOfAnotherModelIsRefusedWhole) {
  const at::Tensor p = parameter({2}), q = parameter({3}), r = parameter({2});
  AdamW a({p}), b({q}), c({p, r});
  for (const auto& x : {p, q, r}) set_grad(x, gradient(x, at::kFloat, 0));
  a.step();
  b.step();
  set_grad(p, gradient(p, at::kFloat, 0));
  c.step();
  const auto before = everything(a);
  EXPECT_THROW(a.load_state_tensors(b.state_tensors()), UsageError);
  EXPECT_THROW(a.load_state_tensors(c.state_tensors()), UsageError);
  EXPECT_THROW(a.load_state_tensors({{"0.exp_average", torch::zeros(2)}}), UsageError);
  EXPECT_TRUE(same_bits(before, everything(a)));
}

TEST(Optimizer, ASecondBackwardAddsInFp32) {
  const at::Tensor p = torch::zeros(1).requires_grad_();
  SGD sgd({p}, SGDOptions(1), StepOptions{.low_precision_grads = true});
  EXPECT_FALSE(p.grad_dtype().has_value());
  const auto backward = [&](double g) { torch::autograd::backward({p.to(at::kBFloat16) * g}, {}); };
  p.mutable_grad() = torch::ones(1, at::kBFloat16) * 256;
  backward(1);  // 257 is no bf16 number
  EXPECT_EQ(p.grad().scalar_type(), at::kFloat);
  EXPECT_EQ(p.grad().item<float>(), 257);
  sgd.step();
  EXPECT_EQ(p.item<float>(), -257);
}

TEST(Optimizer, LetsTheParametersGoAsTheyWere) {
  const at::Tensor p = parameter({2});
  {
    const StepOptions narrow{.low_precision_grads = true};
    SGD sgd({p}, SGDOptions(1), narrow);
    SGD other({p}, SGDOptions(1), narrow);  // as when one is made to take the place of another
    p.mutable_grad() = torch::ones(2, at::kBFloat16);
  }
  EXPECT_EQ(p.grad().scalar_type(), at::kFloat);
  EXPECT_EQ(p.grad_dtype(), at::kFloat);
}

TEST(Optimizer, ScheduledRatesFollowTheStepsTaken) {
  const at::Tensor p = torch::zeros(1).requires_grad_();
  SGD sgd({p}, SGDOptions(100));
  sgd.set_scheduled_rates(0, {1, 10});
  for (const float g : {1.F, kInf, 1.F, 1.F}) {
    set_grad(p, torch::full({1}, g));
    sgd.step();
  }
  EXPECT_EQ(p.item<float>(), -21);
}

TEST(Optimizer, CountsTheBytesOfItsPasses) {
  const auto bytes = [](auto&& optimizer, const at::Tensor& p, at::ScalarType dtype) {
    set_grad(p, gradient(p, dtype, 0));
    optimizer.step();
    return optimizer.bytes_per_parameter();
  };
  // 16-bit parameters: the master and its one copy, as with an fp32 parameter whose copy is kept.
  const at::Tensor p = parameter({1000}, at::kBFloat16), q = parameter({1000}, at::kBFloat16),
                   r = parameter({1000}, at::kBFloat16);
  EXPECT_EQ(bytes(SGD({p}, SGDOptions(1)), p, at::kBFloat16), 14);
  EXPECT_EQ(bytes(SGD({q}, SGDOptions(1).momentum(0.9)), q, at::kBFloat16), 22);
  EXPECT_EQ(bytes(AdamW({r}), r, at::kBFloat16), 30);
  EXPECT_EQ(bytes(LAMB({r}), r, at::kBFloat16), 42);
  EXPECT_EQ(bytes(AdamW({p}), p, at::kFloat), 34);
}

// You et al. 2020, algorithm 2, for one step on one tensor.
TEST(LAMB, FollowsThePaper) {
  const at::Tensor p = parameter({6}), x = p.detach().to(at::kDouble);
  LAMB lamb({p}, LAMBOptions(0.1).weight_decay(0.2).eps(1e-6));
  set_grad(p, gradient(p, at::kFloat, 1));
  const at::Tensor g = p.grad().to(at::kDouble);
  const at::Tensor update =
      g / (g.abs() + 1e-6) + 0.2 * x;  // first step: m/(1-b1) = g, v/(1-b2) = g^2
  lamb.step();
  EXPECT_TRUE(
      at::allclose(p.to(at::kDouble), x - 0.1 * (x.norm() / update.norm()) * update, 0, 1e-6));
}

// Chen et al. 2023, algorithm 2, two steps.
TEST(Lion, FollowsThePaper) {
  const at::Tensor p = parameter({6});
  Lion lion({p}, LionOptions(0.01).weight_decay(0.1).betas({0.9, 0.99}));
  at::Tensor x = p.detach().to(at::kDouble), m = at::zeros_like(x);
  for (int step = 0; step < 2; ++step) {
    const at::Tensor g = gradient(p, at::kFloat, step).to(at::kDouble);
    x = x - 0.01 * ((m * 0.9 + g * 0.1).sign() + 0.1 * x);
    m = m * 0.99 + g * 0.01;
    set_grad(p, gradient(p, at::kFloat, step));
    lion.step();
  }
  EXPECT_TRUE(at::allclose(p.to(at::kDouble), x, 0, 1e-6));
}

TEST(Optimizer, WrongParametersAndGradientsAreNamedBeforeAnythingChanges) {
  const at::Tensor p = parameter({2}), q = parameter({2});
  EXPECT_THAT(complaint([&] { SGD({p, p}, SGDOptions(1)); }), HasSubstr("there twice"));
  EXPECT_THAT(complaint([&] { SGD({at::zeros({1}).expand({3}).requires_grad_()}, SGDOptions(1)); }),
              HasSubstr("share memory"));
  EXPECT_THAT(complaint([&] { SGD({at::zeros({1}, at::kComplexFloat)}, SGDOptions(1)); }),
              HasSubstr("dtype"));
  AdamW adam({p, q});
  const at::Tensor before = p.detach().clone();
  set_grad(p, torch::ones(2));
  set_grad(q, torch::ones(3));
  EXPECT_THAT(complaint([&] { adam.step(); }), HasSubstr("another shape"));
  EXPECT_TRUE(at::equal(p, before));
  set_grad(q, torch::ones(2, at::kLong));
  EXPECT_THAT(complaint([&] { adam.step(); }), HasSubstr("floating point"));
  EXPECT_TRUE(at::equal(p, before));
  set_grad(q, torch::ones(2, at::kDouble));
  adam.step();
  EXPECT_TRUE(at::equal(p - before, q - parameter({2})));
}

TEST(Optimizer, OptionsOutOfRangeAreNamed) {
  const at::Tensor p = parameter({2});
  const double nan = std::nan("");
  const auto refused = [&](auto make) { EXPECT_THAT(complaint(make), HasSubstr("out of range")); };
  for (const double lr : {-1.0, nan, static_cast<double>(kInf)})
    refused([&] { SGD({p}, SGDOptions(lr)); });
  refused([&] { SGD({p}, SGDOptions(1).momentum(-0.1)); });
  refused([&] { SGD({p}, SGDOptions(1).nesterov(true)); });
  refused([&] { SGD({p}, SGDOptions(1).weight_decay(-1)); });
  refused([&] { Adam({p}, AdamOptions(1).betas({1.0, 0.9})); });
  refused([&] { AdamW({p}, AdamWOptions(1).betas({0.9, -0.1})); });
  refused([&] { AdamW({p}, AdamWOptions(1).eps(-1)); });
  refused([&] { LAMB({p}, LAMBOptions(1).trust_limit(0)); });
  refused([&] { Lion({p}, LionOptions(1).weight_decay(nan)); });
  SGD sgd({p}, SGDOptions(1));
  refused([&] {
    sgd.add_param_group(
        torch::optim::OptimizerParamGroup({parameter({1})}, std::make_unique<SGDOptions>(-1)));
  });
  EXPECT_EQ(sgd.param_groups().size(), 1U);
  sgd.param_groups()[0].options().set_lr(-1);
  set_grad(p, torch::ones(2));
  refused([&] { sgd.step(); });
  EXPECT_TRUE(at::equal(p, parameter({2})));
}

TEST(Optimizer, TheLastHoldIn16BitsClosesTheGradientsDtypeWhoeverGoesLast) {
  for (const bool narrow_goes_first : {true, false}) {
    const at::Tensor p = parameter({2});
    auto narrow = std::make_unique<SGD>(std::vector<at::Tensor>{p}, SGDOptions(),
                                        StepOptions{.low_precision_grads = true});
    auto wide = std::make_unique<SGD>(std::vector<at::Tensor>{p});
    set_grad(p, torch::ones(2, at::kBFloat16));
    (narrow_goes_first ? narrow : wide).reset();
    EXPECT_EQ(p.grad_dtype().has_value(), narrow_goes_first);
    (narrow_goes_first ? wide : narrow).reset();
    EXPECT_EQ(p.grad_dtype(), at::kFloat);
    EXPECT_EQ(p.grad().scalar_type(), at::kFloat);
  }
}

}  // namespace
}  // namespace demi::optim
