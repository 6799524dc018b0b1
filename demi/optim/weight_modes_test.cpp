// WeightMode: bf16 parameters that are trained as FP32 without a master.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cmath>
#include <map>
#include <sstream>
#include <string>
#include <vector>

#include "demi/core/error.h"
#include "demi/kernels/cpu_kernels.h"
#include "demi/kernels/recode.h"
#include "demi/optim/adamw.h"
#include "demi/optim/clip.h"
#include "demi/optim/ema.h"
#include "demi/optim/export_fp32.h"
#include "demi/optim/kinds_testing.h"
#include "demi/optim/sgd.h"
#include "demi/optim/testing.h"
#include "demi/scaler/grad_scaler.h"
#include "demi/step/coded_state.h"
#include "demi/step/coded_weight.h"
#include "demi/step/emulated_device_testing.h"
#include "demi/weights/recorded_warnings_testing.h"

namespace demi::optim {
namespace {

using namespace testing;
using ::testing::HasSubstr;

constexpr StepOptions kSplit{.weight_mode = WeightMode::split};

constexpr WeightMode kModes[] = {WeightMode::master, WeightMode::split, WeightMode::split24,
                                 WeightMode::stochastic};

StepOptions in(WeightMode mode, std::optional<kernels::Path> path = std::nullopt) {
  return {.path = path, .weight_mode = mode, .rounding_seed = 5};
}

/// Parameters of that dtype that begin as the same numbers.
struct Weights {
  Tensors all;
  explicit Weights(at::ScalarType dtype) {
    for (const auto& one : {parameter({70, 60}, at::kBFloat16), parameter({3}, at::kBFloat16, 2),
                            parameter({4, 8, 3, 3}, at::kBFloat16, 3)
                                .detach()
                                .contiguous(at::MemoryFormat::ChannelsLast)})
      all.push_back(one.detach().to(dtype).clone().requires_grad_());
  }
  void set_gradients(int step) const {
    for (const at::Tensor& p : all) set_grad(p, gradient(p, at::kBFloat16, step).to(p.dtype()));
  }
};

void step(Optimizer& optimizer, const Weights& weights, int from, int to) {
  for (int i = from; i < to; ++i) {
    weights.set_gradients(i);
    optimizer.step();
  }
}

/// Rounds to nearest, ties away from zero, for numbers of moderate size.
at::Tensor ties_away(const at::Tensor& x) {
  const at::Tensor down = x.view(at::kInt).bitwise_and(~0xFFFF).view(at::kFloat);
  const at::Tensor up = (x.view(at::kInt).bitwise_and(~0xFFFF) + 0x10000).view(at::kFloat);
  return at::where((x - down).abs() < (up - x).abs(), down, up).to(at::kBFloat16);
}

/// The numbers that the optimizer trains.
at::Tensor trained(const Optimizer& optimizer, const at::Tensor& parameter) {
  const at::Tensor fp32 = fp32_weight(optimizer, parameter);
  return fp32.defined() ? fp32 : parameter.detach().to(at::kFloat);
}

void expect_same(const Optimizer& a, const Weights& p, const Optimizer& b, const Weights& q) {
  for (std::size_t i = 0; i < p.all.size(); ++i) EXPECT_TRUE(at::equal(p.all[i], q.all[i])) << i;
  const auto expected = b.state_tensors();
  for (const auto& [name, tensor] : a.state_tensors())
    EXPECT_TRUE(at::equal(tensor, expected.at(name))) << name;
}

/// Steps with a loss scale, clipping every third time, and a gradient of Inf every seventh.
void scaled_step(Optimizer& optimizer, const Weights& weights, GradScaler& scaler, int i) {
  weights.set_gradients(i);
  for (const at::Tensor& p : weights.all) p.mutable_grad().mul_(scaler.get_scale());
  if (i % 7 == 6) weights.all[1].mutable_grad()[0] = INFINITY;
  scaler.unscale_(optimizer);
  if (i % 3 == 0) clip_grad_norm_(weights.all, 1.0);
  scaler.step(optimizer);
  scaler.update();
}

TEST(SplitWeights, AreTheTrajectoryOfFp32RoundedTiesAway) {
  for (const Kind& kind : kKinds)
    for (const auto path : {kernels::Path::reference, kernels::Path::avx2, kernels::Path::avx512}) {
      if (!kernels::cpu_kernels(path)) continue;
      SCOPED_TRACE(c10::str(kind.name, " ", kernels::name_of(path)));
      const Weights p(at::kBFloat16), q(at::kFloat);
      StepOptions as_fp32 = in(WeightMode::master, path);
      as_fp32.low_precision_grads = true;
      const auto split = kind.make(p.all, in(WeightMode::split, path));
      const auto whole = kind.make(q.all, as_fp32);
      GradScaler one({.init_scale = 1024}), other({.init_scale = 1024});
      for (GradScaler* scaler : {&one, &other}) scaler->scale(at::ones({}));
      for (int i = 0; i < 200; ++i) {
        scaled_step(*split, p, one, i);
        scaled_step(*whole, q, other, i);
      }
      EXPECT_LT(one.get_scale(), 1024);
      for (std::size_t i = 0; i < p.all.size(); ++i) {
        EXPECT_TRUE(at::equal(fp32_weight(*split, p.all[i]), q.all[i])) << i;
        EXPECT_TRUE(at::equal(p.all[i], ties_away(q.all[i].detach()))) << i;
      }
      EXPECT_EQ(split->state_tensors().count("0.master"), 0U);
      EXPECT_EQ(split->state_tensors().at("0.remainder").nbytes(), 2U * 70 * 60);
    }
}

// With gradients that are not of the weights, both train the same FP32 numbers.
TEST(SplitWeights, DifferFromThoseOfMastersWhereTheEvenOfTwoIsNearerToZero) {
  constexpr int64_t kElements = 1 << 20;
  constexpr int kSteps = 20;
  torch::manual_seed(3);
  const at::Tensor first = at::randn({kElements}).to(at::kBFloat16);
  const at::Tensor p = first.clone().requires_grad_(), q = first.clone().requires_grad_();
  AdamW split({p}, AdamWOptions(1e-3), kSplit), master({q}, AdamWOptions(1e-3));
  int64_t all = 0;
  for (int i = 0; i < kSteps; ++i) {
    const at::Tensor g = at::randn({kElements}).to(at::kBFloat16);
    set_grad(p, g);
    set_grad(q, g.clone());
    split.step();
    master.step();
    const at::Tensor bits = trained(split, p).view(at::kInt);
    EXPECT_TRUE(at::equal(bits, trained(master, q).view(at::kInt))) << i;
    const at::Tensor is_middle = bits.bitwise_and(0x1FFFF) == 0x8000, differs = p != q;
    EXPECT_TRUE(at::equal(differs, is_middle)) << i;
    all += differs.sum().item<int64_t>();
  }
  // One in 131,072: 160, and six standard deviations.
  EXPECT_NEAR(static_cast<double>(all), kElements * kSteps / 131072.0, 6 * std::sqrt(160.0));
}

// Of numbers from 2^-16 on, which fp16 is near enough to.
TEST(SplitFp16Weights, AreTheTrajectoryOfFp32RoundedTiesAway) {
  for (const Kind& kind : kKinds)
    for (const auto path : {kernels::Path::reference, kernels::Path::avx2, kernels::Path::avx512}) {
      if (!kernels::cpu_kernels(path)) continue;
      SCOPED_TRACE(c10::str(kind.name, " ", kernels::name_of(path)));
      const Weights p(at::kHalf), q(at::kFloat);
      for (std::size_t k = 0; k < p.all.size(); ++k) {
        p.all[k].detach().abs_().add_(6);
        q.all[k].detach().copy_(p.all[k].detach());
      }
      StepOptions as_fp32 = in(WeightMode::master, path);
      as_fp32.low_precision_grads = true;
      const auto split = kind.make(p.all, in(WeightMode::split, path));
      const auto whole = kind.make(q.all, as_fp32);
      for (int i = 0; i < 20; ++i) {
        p.set_gradients(i);
        for (std::size_t k = 0; k < q.all.size(); ++k) set_grad(q.all[k], p.all[k].grad().clone());
        split->step();
        whole->step();
      }
      for (std::size_t i = 0; i < p.all.size(); ++i) {
        EXPECT_GE(q.all[i].abs().min().item<double>(), 0x1p-16);
        EXPECT_TRUE(at::equal(fp32_weight(*split, p.all[i]), q.all[i])) << i;
        const at::Tensor error = (p.all[i].detach().to(at::kFloat) - q.all[i]).abs();
        EXPECT_LE((error - 0x1p-11 * q.all[i].abs()).max().item<double>(), 0) << "the nearest";
      }
      EXPECT_EQ(split->state_tensors().at("0.remainder").scalar_type(), at::kUInt16);
    }
}

struct Form {
  at::ScalarType dtype;
  WeightMode mode;
};

constexpr Form kForms[] = {{at::kBFloat16, WeightMode::split},
                           {at::kBFloat16, WeightMode::split24},
                           {at::kBFloat16, WeightMode::stochastic},
                           {at::kHalf, WeightMode::split}};

TEST(WeightModes, EveryPathHasTheBitsOfTheReference) {
  const EmulatedDevice device;
  for (const Kind& kind : kKinds)
    for (const auto& [dtype, mode] : kForms) {
      SCOPED_TRACE(c10::str(kind.name, " ", name_of(mode), " ", dtype));
      const Weights p(dtype);
      const auto expected = kind.make(p.all, in(mode, kernels::Path::reference));
      step(*expected, p, 0, 3);
      for (const auto path : {kernels::Path::avx2, kernels::Path::avx512, kernels::Path::aten}) {
        if (path != kernels::Path::aten && !kernels::cpu_kernels(path)) continue;
        // The sums of a trust ratio are in another order there.
        if (path == kernels::Path::aten && kind.id == KindId::kLamb) continue;
        SCOPED_TRACE(kernels::name_of(path));
        const Weights q(dtype);
        const auto seen = kind.make(q.all, in(mode, path));
        step(*seen, q, 0, 3);
        expect_same(*seen, q, *expected, p);
      }
      const Weights r(dtype);
      const auto emulated = kind.make(r.all, in(mode), device);
      step(*emulated, r, 0, 3);
      expect_same(*emulated, r, *expected, p);
    }
}

// The chance that a weight goes up is what lies below it, whatever the step before.
TEST(StochasticWeights, AreNeighboursOfWhatFp32WouldBe) {
  const Weights p(at::kBFloat16);
  AdamW adamw(p.all, AdamWOptions(0.1), in(WeightMode::stochastic));
  int64_t up = 0, down = 0;
  for (int i = 0; i < 3; ++i) {
    const Weights q(at::kFloat);
    for (std::size_t k = 0; k < q.all.size(); ++k) q.all[k].detach().copy_(p.all[k].detach());
    AdamW exact(q.all, AdamWOptions(0.1));
    if (i > 0) {
      auto state = adamw.state_tensors();
      exact.load_state_tensors(state);
    }
    step(adamw, p, i, i + 1);
    step(exact, q, i, i + 1);
    for (std::size_t k = 0; k < q.all.size(); ++k) {
      const at::Tensor bits = q.all[k].detach().view(at::kInt);
      const at::Tensor below = bits.bitwise_and(~0xFFFF).view(at::kFloat);
      const at::Tensor above = (bits.bitwise_and(~0xFFFF) + 0x10000).view(at::kFloat);
      const at::Tensor seen = p.all[k].detach().to(at::kFloat);
      const at::Tensor is_up = (seen == above).logical_and(below != q.all[k]);
      EXPECT_TRUE(((seen == below).logical_or(is_up)).all().item<bool>()) << i << " " << k;
      up += is_up.sum().item<int64_t>();
      down += (seen == below).sum().item<int64_t>();
    }
  }
  EXPECT_NEAR(static_cast<double>(up) / static_cast<double>(up + down), 0.5, 0.05);
}

TEST(StochasticWeights, KeepOnlyThemselvesAndFollowTheSeed) {
  const Weights p(at::kBFloat16), q(at::kBFloat16);
  AdamW one(p.all, AdamWOptions(0.1), in(WeightMode::stochastic));
  StepOptions other_seed = in(WeightMode::stochastic);
  other_seed.rounding_seed = 6;
  AdamW other(q.all, AdamWOptions(0.1), other_seed);
  step(one, p, 0, 2);
  step(other, q, 0, 2);
  EXPECT_EQ(one.state_tensors().count("0.master") + one.state_tensors().count("0.remainder"), 0U);
  EXPECT_FALSE(at::equal(p.all[0], q.all[0]));
}

TEST(WeightModes, TensorOperationsJoinAsTheCodecDoes) {
  const at::Tensor some = at::tensor({0, 1, 127, 0x7FFF, -1, -2, -128, -0x8000, 0xFFF, 0x1000,
                                      -0x1000, -0x1001, -0x2000, -0x2001, 0x3FFF, -0x4000},
                                     at::kInt)
                              .to(at::kShort);
  const at::Tensor bits = at::arange(65536, at::kInt).to(at::kShort).repeat({some.numel()});
  for (const auto codec : {kernels::WeightCodec::split, kernels::WeightCodec::split24,
                           kernels::WeightCodec::split_fp16}) {
    const bool is_fp16 = codec == kernels::WeightCodec::split_fp16;
    const at::Tensor halves = bits.view(is_fp16 ? at::kHalf : at::kBFloat16);
    const at::Tensor cases = is_fp16 ? some.view(at::kUInt16) : some.to(*remainder_dtype(codec));
    const at::Tensor rest = cases.unsqueeze(1).expand({-1, 65536}).contiguous().view({-1});
    const at::Tensor expected = at::empty(halves.sizes(), at::kFloat);
    kernels::decode_array(expected.mutable_data_ptr<float>(),
                          {.parameter = static_cast<std::uint16_t*>(halves.mutable_data_ptr()),
                           .rest = rest.mutable_data_ptr(),
                           .codec = codec},
                          expected.numel());
    EXPECT_TRUE(at::equal(joined_weight(halves, rest).view(at::kInt), expected.view(at::kInt)));
  }
}

TEST(SplitWeights, WhatTheProgramWritesCounts) {
  const Weights p(at::kBFloat16);
  AdamW adamw(p.all, AdamWOptions(0), kSplit);
  step(adamw, p, 0, 3);
  const at::Tensor kept = fp32_weight(adamw, p.all[1]).clone();
  {
    const at::NoGradGuard no_grad;
    at::Tensor(p.all[0]).fill_(0.5);
  }
  step(adamw, p, 3, 4);
  EXPECT_TRUE(at::equal(p.all[0], at::full_like(p.all[0], 0.5)));
  EXPECT_LE((fp32_weight(adamw, p.all[0]) - 0.5).abs().max().item<double>(), 0x1p-10);
  EXPECT_TRUE(at::equal(fp32_weight(adamw, p.all[1]), kept)) << "decay and rate are 0";
  at::Tensor(p.all[0]).set_data(at::zeros({70, 60}, at::kBFloat16));
  step(adamw, p, 4, 5);
  EXPECT_TRUE(at::equal(p.all[0], at::zeros_like(p.all[0])));
}

TEST(WeightModes, ASkippedStepChangesNothingAndDrawsNothing) {
  for (const WeightMode mode : kModes) {
    SCOPED_TRACE(name_of(mode));
    const Weights p(at::kBFloat16), q(at::kBFloat16);
    AdamW adamw(p.all, AdamWOptions(0.1), in(mode)), other(q.all, AdamWOptions(0.1), in(mode));
    step(adamw, p, 0, 2);
    step(other, q, 0, 2);
    p.set_gradients(2);
    p.all[1].mutable_grad().fill_(INFINITY);
    adamw.step();
    EXPECT_TRUE(adamw.last_step().skipped());
    expect_same(adamw, p, other, q);
    step(adamw, p, 3, 5);
    step(other, q, 3, 5);
    expect_same(adamw, p, other, q);
  }
}

/// Saves `first` with its weights into `second` with those of its own.
void carry(const AdamW& first, const Weights& p, AdamW& second, const Weights& q, bool archived) {
  for (std::size_t i = 0; i < p.all.size(); ++i) q.all[i].detach().copy_(p.all[i].detach());
  if (!archived) return second.load_state_tensors(first.state_tensors());
  std::stringstream file;
  torch::save(first, file);
  torch::load(second, file);
}

bool is_exact(WeightMode mode) { return mode == WeightMode::master || mode == WeightMode::split; }

TEST(WeightModes, GoOnWhereTheyWereSavedInEveryMode) {
  for (const WeightMode from : kModes)
    for (const WeightMode to : kModes)
      for (const bool archived : {false, true}) {
        SCOPED_TRACE(c10::str(name_of(from), " to ", name_of(to), archived));
        const Weights p(at::kBFloat16), q(at::kBFloat16), r(at::kFloat);
        AdamW first(p.all, AdamWOptions(0.1), in(from)), second(q.all, AdamWOptions(0.1), in(to));
        AdamW whole(r.all, AdamWOptions(0.1));
        step(first, p, 0, 5);
        Tensors saved;
        for (const at::Tensor& one : p.all) saved.push_back(trained(first, one));
        carry(first, p, second, q, archived);
        const weights::testing::RecordedWarnings warnings;
        q.set_gradients(5);
        for (auto& group : second.param_groups())
          group.options().set_lr(0);  // takes the state over
        second.step();
        const bool loses = from != to && from != WeightMode::stochastic && (!is_exact(to)) &&
                           !(from == WeightMode::split24 && is_exact(to));
        for (std::size_t i = 0; i < p.all.size(); ++i) {
          const at::Tensor kept = trained(second, q.all[i]);
          EXPECT_EQ(at::equal(kept, saved[i]), !loses) << i;
          const double half = to == WeightMode::stochastic ? 0x1p-8 : 0x1p-16;
          EXPECT_LE(((kept - saved[i]).abs() - half * saved[i].abs()).max().item<double>(), 0) << i;
        }
        ASSERT_EQ(warnings.messages().size(), loses ? 1U : 0U);
        if (!loses) continue;
        EXPECT_THAT(warnings.messages()[0],
                    HasSubstr(c10::str("in mode ", name_of(from), " are kept in ", name_of(to),
                                       " from here on")));
      }
}

// The master of a file is not what the program has written into the parameter since.
TEST(WeightModes, GoOnWhereTheyWereSavedInFp16) {
  for (const WeightMode from : {WeightMode::master, WeightMode::split})
    for (const WeightMode to : {WeightMode::master, WeightMode::split})
      for (const bool archived : {false, true}) {
        SCOPED_TRACE(c10::str(name_of(from), " to ", name_of(to), archived));
        const Weights p(at::kHalf), q(at::kHalf);
        AdamW first(p.all, AdamWOptions(0.1), in(from)), second(q.all, AdamWOptions(0), in(to));
        step(first, p, 0, 5);
        Tensors saved;
        for (const at::Tensor& one : p.all) saved.push_back(trained(first, one));
        carry(first, p, second, q, archived);
        for (auto& group : second.param_groups()) group.options().set_lr(0);
        step(second, q, 5, 6);
        for (std::size_t i = 0; i < p.all.size(); ++i) {
          const at::Tensor error = (trained(second, q.all[i]) - saved[i]).abs();
          EXPECT_LE(error.max().item<double>(), 0x1p-40) << i;
          EXPECT_EQ(at::where(saved[i].abs() >= 0x1p-16, error, 0.0).max().item<double>(), 0) << i;
        }
      }
}

/// The warning when a state of one mode is loaded into another, and whether anything has changed.
std::string strict_load(AdamW& first, const Weights& p, AdamW& second, const Weights& q,
                        bool archived) {
  const auto before = second.state_tensors();
  const std::string said = complaint([&] { carry(first, p, second, q, archived); });
  if (!said.empty()) {
    for (const auto& [name, tensor] : second.state_tensors())
      EXPECT_TRUE(tensor.is_same(before.at(name)) || name == "taken") << name;
  }
  return said;
}

TEST(WeightModes, AStrictLoadRefusesAnotherMode) {
  for (const WeightMode from : kModes)
    for (const WeightMode to : kModes)
      for (const bool archived : {false, true}) {
        SCOPED_TRACE(c10::str(name_of(from), " to ", name_of(to), archived));
        const Weights p(at::kBFloat16), q(at::kBFloat16);
        StepOptions strict = in(to);
        strict.strict_state = true;
        AdamW first(p.all, AdamWOptions(0.1), in(from)), second(q.all, AdamWOptions(0.1), strict);
        step(first, p, 0, 3);
        step(second, q, 0, 1);
        const std::string said = strict_load(first, p, second, q, archived);
        EXPECT_EQ(said.empty(), from == to) << said;
        if (from == to) {
          step(first, p, 3, 4);
          step(second, q, 3, 4);
          expect_same(first, p, second, q);
          continue;
        }
        const auto form = [](WeightMode mode) {
          return mode == WeightMode::stochastic ? "no more than the parameter" : name_of(mode);
        };
        EXPECT_THAT(said, HasSubstr("the weight of parameter 0"));
        EXPECT_THAT(said,
                    HasSubstr(c10::str("seen: saved as ", form(from), "; accepted: ", form(to))));
      }
  const Weights p(at::kBFloat16), q(at::kFloat);
  AdamW first(p.all, AdamWOptions(0.1), kSplit),
      second(q.all, AdamWOptions(0.1), {.strict_state = true});
  step(first, p, 0, 1);
  EXPECT_THAT(strict_load(first, p, second, q, false), HasSubstr("saved as split"));
}

TEST(WeightModes, AWeightThatIsWrittenAfterALoadCounts) {
  for (const WeightMode to : kModes) {
    SCOPED_TRACE(name_of(to));
    const Weights p(at::kBFloat16), q(at::kBFloat16);
    AdamW first(p.all, AdamWOptions(0.1)), second(q.all, AdamWOptions(0), in(to));
    step(first, p, 0, 5);
    carry(first, p, second, q, false);
    q.all[0].detach().fill_(8);  // no weight rounds to it: one that did would keep its master
    for (auto& group : second.param_groups()) group.options().set_lr(0);
    step(second, q, 5, 6);
    const at::Tensor written = trained(second, q.all[0]);
    EXPECT_TRUE(at::equal(written, at::full_like(written, 8)));
    if (!is_exact(to)) continue;
    EXPECT_TRUE(at::equal(trained(second, q.all[1]), trained(first, p.all[1])));
  }
}

TEST(WeightModes, ResumeWithTheBitsOfARunThatWasNotStopped) {
  for (const WeightMode mode : kModes) {
    SCOPED_TRACE(name_of(mode));
    const Weights p(at::kBFloat16), q(at::kBFloat16);
    AdamW first(p.all, AdamWOptions(0.1), in(mode)), second(q.all, AdamWOptions(0.1), in(mode));
    step(first, p, 0, 5);
    carry(first, p, second, q, true);
    step(first, p, 5, 8);
    step(second, q, 5, 8);
    expect_same(first, p, second, q);
  }
}

TEST(SplitWeights, AConvertedModuleGetsThemBack) {
  const Weights p(at::kBFloat16), q(at::kFloat);
  AdamW adamw(p.all, AdamWOptions(0.1), kSplit), whole(q.all, AdamWOptions(0.1));
  step(adamw, p, 0, 5);
  step(whole, q, 0, 6);
  for (const at::Tensor& one : p.all) {
    one.mutable_grad().reset();
    one.set_data(one.detach().to(at::kFloat));
  }
  step(adamw, p, 5, 6);
  for (std::size_t i = 0; i < p.all.size(); ++i) EXPECT_TRUE(at::equal(p.all[i], q.all[i])) << i;
  EXPECT_EQ(adamw.state_tensors().count("0.remainder"), 0U);
}

TEST(SplitWeights, AConvertedModuleKeepsWhatIsWrittenToIt) {
  const Weights p(at::kBFloat16);
  AdamW adamw(p.all, AdamWOptions(0.1), kSplit);
  step(adamw, p, 0, 5);
  const at::Tensor kept = trained(adamw, p.all[1]).clone();
  for (auto& group : adamw.param_groups()) group.options().set_lr(0);
  for (const at::Tensor& one : p.all) {
    one.mutable_grad().reset();
    one.set_data(one.detach().to(at::kFloat));
  }
  p.all[0].detach().fill_(0.3);  // no bf16 number
  step(adamw, p, 5, 6);
  EXPECT_TRUE(at::equal(p.all[0], at::full_like(p.all[0], 0.3)));
  EXPECT_TRUE(at::equal(p.all[1], kept));
}

TEST(SplitFp16Weights, AConvertedModuleGetsThemBack) {
  const at::Tensor p = parameter({70, 60}, at::kHalf);
  AdamW adamw({p}, AdamWOptions(0.1), kSplit);
  for (int i = 0; i < 3; ++i) {
    set_grad(p, gradient(p, at::kHalf, i));
    adamw.step();
  }
  const at::Tensor kept = trained(adamw, p).clone();
  for (auto& group : adamw.param_groups()) group.options().set_lr(0);
  const auto convert = [&](at::ScalarType dtype) {
    p.mutable_grad().reset();
    at::Tensor(p).set_data(p.detach().to(dtype));
    set_grad(p, gradient(p, dtype, 3));
    adamw.step();
  };
  EXPECT_FALSE(at::equal(kept, p.detach().to(at::kFloat)));
  convert(at::kFloat);
  EXPECT_TRUE(at::equal(p, kept));
  EXPECT_EQ(adamw.state_tensors().count("0.remainder"), 0U);
  // To the other format and back: what the conversion has rounded counts.
  convert(at::kHalf);
  const at::Tensor narrow = p.detach().to(at::kBFloat16);
  convert(at::kBFloat16);
  EXPECT_TRUE(at::equal(p, narrow));
  EXPECT_TRUE(at::equal(trained(adamw, p), narrow.to(at::kFloat)));
  EXPECT_EQ(adamw.state_tensors().at("0.remainder").scalar_type(), at::kShort);
}

TEST(SplitFp16Weights, BeyondTheirRangeAreNamed) {
  const at::Tensor p = parameter({8}, at::kHalf), q = parameter({8}, at::kHalf);
  const at::Tensor numbers = at::tensor({1.0, -2.0, 65519.0, 0.0, 3.0, 4.0, INFINITY, 5.0});
  const std::map<std::string, at::Tensor> state{{"taken", at::scalar_tensor(1, at::kLong)},
                                                {"0.step", at::scalar_tensor(1, at::kLong)},
                                                {"0.master", numbers}};
  SGD sgd({p}, SGDOptions(0), kSplit);
  p.detach().copy_(numbers);
  sgd.load_state_tensors(state);
  set_grad(p, at::ones({8}, at::kHalf));
  sgd.step();
  EXPECT_TRUE(at::equal(trained(sgd, p), numbers)) << "Inf is Inf already";

  numbers[1] = -65520;
  SGD other({q}, SGDOptions(0), kSplit);
  q.detach().copy_(numbers);
  const at::Tensor before = q.detach().clone();
  other.load_state_tensors(state);
  set_grad(q, at::ones({8}, at::kHalf));
  const std::string said = complaint([&] { other.step(); });
  EXPECT_THAT(said, HasSubstr("shape [8] is beyond fp16"));
  EXPECT_THAT(said, HasSubstr("seen: 65520"));
  EXPECT_TRUE(at::equal(q, before));
}

TEST(SplitFp16Weights, AStepThatLeavesTheRangeIsFollowedByOverflowsThatNameTheTensor) {
  const at::Tensor p = parameter({3}, at::kHalf), q = at::full({2}, 60000.0, at::kHalf);
  q.requires_grad_();
  SGD sgd({p, q}, SGDOptions(1), kSplit);
  const weights::testing::RecordedWarnings warnings;
  const auto step_down = [&](double by) {
    set_grad(p, at::full({3}, -0.5, at::kHalf));
    set_grad(q, at::full({2}, -by, at::kHalf));
    sgd.step();
  };
  step_down(6000);
  EXPECT_TRUE(q.isinf().all().item<bool>());
  EXPECT_FALSE(sgd.last_step().skipped());
  const at::Tensor before = p.detach().clone();
  for (int i = 0; i < 2; ++i) {
    step_down(NAN);  // what backward makes of an Inf
    EXPECT_TRUE(sgd.last_step().skipped());
  }
  EXPECT_TRUE(at::equal(p, before));
  ASSERT_EQ(warnings.holding("has become Inf"), 1);
  EXPECT_EQ(warnings.holding("parameter 1, of shape [2],"), 1);
}

TEST(SplitWeights, AverageAndExportSeeFp32) {
  torch::nn::Linear model(8, 8);
  model->to(at::kBFloat16);
  AdamW adamw(model->parameters(), AdamWOptions(0.01), kSplit);
  EMA ema(*model, 0);  // the weight itself
  set_grad(model->weight, at::ones({8, 8}, at::kBFloat16));
  set_grad(model->bias, at::ones({8}, at::kBFloat16));
  adamw.step();
  ema.update(adamw.last_step());
  const at::Tensor fp32 = fp32_weight(adamw, model->weight);
  EXPECT_FALSE(at::equal(fp32, model->weight.to(at::kFloat)));
  EXPECT_TRUE(at::equal(ema.averages().at("weight"), fp32));
  const auto file = export_fp32(*model, adamw);
  EXPECT_TRUE(at::equal(file.at("weight"), fp32));
  EXPECT_EQ(file.size(), 2U);
}

// The moment at which one exports: what the next step would start from.
TEST(WeightModes, AConvertedModuleIsExportedAsItIsTrained) {
  for (const WeightMode mode : {WeightMode::split, WeightMode::split24})
    for (const auto from : {at::kBFloat16, at::kHalf})
      for (const auto to : {at::kFloat, at::kDouble, at::kHalf, at::kBFloat16}) {
        if (from == at::kHalf && mode == WeightMode::split24) continue;
        SCOPED_TRACE(c10::str(name_of(mode), " ", from, " to ", to));
        torch::nn::Linear model(8, 8);
        model->to(from);
        AdamW adamw(model->parameters(), AdamWOptions(0.01), in(mode));
        set_grad(model->weight, at::ones({8, 8}, from));
        adamw.step();
        adamw.zero_grad();
        const at::Tensor trained_as = fp32_weight(adamw, model->weight);
        model->to(to);
        const bool is_wide = to == at::kFloat || to == at::kDouble;
        const at::Tensor expected = is_wide      ? trained_as.to(to)
                                    : from == to ? trained_as
                                                 : model->weight.to(at::kFloat);
        EXPECT_TRUE(at::equal(fp32_weight(adamw, model->weight), expected));
        EXPECT_TRUE(at::equal(export_fp32(*model, adamw).at("weight"), expected));
        if (!is_wide) continue;
        {
          const at::NoGradGuard no_grad;
          model->weight[0].fill_(0.3);  // what is written counts
        }
        adamw.param_groups()[0].options().set_lr(0);
        const at::Tensor before = export_fp32(*model, adamw).at("weight").clone();
        EXPECT_TRUE(at::equal(before[0], at::full({8}, 0.3, to)));
        set_grad(model->weight, at::ones({8, 8}, to));
        adamw.step();
        EXPECT_TRUE(at::equal(model->weight, before));
      }
}

// The remainder of split24 has the dtype of codes, and is none.
TEST(WeightModes, MomentsBesideARemainderAreDecoded) {
  const Weights p(at::kBFloat16);
  AdamW adamw(p.all, AdamWOptions(0.1), in(WeightMode::split24));
  step(adamw, p, 0, 2);
  const auto& state =
      static_cast<const ParamState&>(*adamw.state().at(p.all[0].unsafeGetTensorImpl()));
  ASSERT_EQ(state.remainder.scalar_type(), at::kChar);
  std::vector<std::string> names;
  for (const auto& [name, tensor] : decoded_tensors(state)) names.push_back(name);
  EXPECT_THAT(names, ::testing::ElementsAre("step", "exp_avg", "exp_avg_sq"));
}

TEST(SplitWeights, WhatCannotBeSplitIsNamed) {
  const auto said = [](const at::Tensor& one, const StepOptions& options = kSplit) {
    AdamW adamw({one}, AdamWOptions(0.1), options);
    set_grad(one, at::ones_like(one));
    return complaint([&] { adamw.step(); });
  };
  EXPECT_EQ(said(parameter({8}, at::kHalf)), "");
  for (const WeightMode mode : {WeightMode::split24, WeightMode::stochastic})
    EXPECT_THAT(said(parameter({8}, at::kHalf), in(mode)), HasSubstr("fp16 parameters"));
  EXPECT_THAT(said(at::zeros({4, 4}, at::kBFloat16).slice(1, 0, 2).requires_grad_()),
              HasSubstr("gaps in its memory"));
  EXPECT_EQ(said(parameter({8}, at::kFloat)), "");
  const at::Tensor one = parameter({8}, at::kBFloat16);
  AdamW adamw({one}, AdamWOptions(0.1), kSplit);
  set_grad(one, at::ones_like(one));
  adamw.step();
  auto state = adamw.state_tensors();
  for (const at::Tensor& wrong : {at::zeros({8}, at::kInt), at::zeros({2, 4}, at::kShort)}) {
    state["0.remainder"] = wrong;
    EXPECT_THROW(adamw.load_state_tensors(state), UsageError);
  }
}

}  // namespace
}  // namespace demi::optim
