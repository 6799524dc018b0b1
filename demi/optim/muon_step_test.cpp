// Muon as one optimizer of demi's: matrices of many forms, skipped steps, clipping, states in fewer
// bytes, devices, and what it refuses.
#include <ATen/autocast_mode.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <sstream>

#include "demi/optim/adamw.h"
#include "demi/optim/clip.h"
#include "demi/optim/multi_optimizer.h"
#include "demi/optim/muon.h"
#include "demi/optim/testing.h"
#include "demi/step/emulated_device_testing.h"

namespace demi::optim {
namespace {

using namespace testing;
using ::testing::HasSubstr;
using Tensors = std::vector<at::Tensor>;

/// On a backend of the test's choice.
class MuonOn : public Muon {
 public:
  MuonOn(const Tensors& p, const MuonOptions& options, const Backend& backend,
         StepOptions step = {})
      : Muon({torch::optim::OptimizerParamGroup(p)}, options, step, backend) {}
};

MuonOptions in_fp32(double lr = 0.02) { return MuonOptions(lr).products(MatrixProducts::fp32); }

void set_gradients(const Tensors& p, int step, at::ScalarType dtype = at::kFloat) {
  for (const auto& one : p) set_grad(one, gradient(one, dtype, step));
}

Tensors walk(const Tensors& p, const MuonOptions& options, StepOptions step_options = {},
             int steps = 4) {
  Muon muon(p, options, step_options);
  for (int step = 0; step < steps; ++step) {
    set_gradients(p, step);
    muon.step();
  }
  return p;
}

void expect_near(const Tensors& seen, const Tensors& expected, double tolerance,
                 const char* what = "") {
  for (size_t i = 0; i < seen.size(); ++i)
    EXPECT_TRUE(at::allclose(seen[i].to(at::kFloat), expected[i].to(at::kFloat), 0, tolerance))
        << what << " parameter " << i << ": "
        << (seen[i].to(at::kFloat) - expected[i].to(at::kFloat)).abs().max();
}

void expect_same(const Tensors& seen, const Tensors& expected, const char* what = "") {
  for (size_t i = 0; i < seen.size(); ++i)
    EXPECT_TRUE(at::equal(seen[i], expected[i])) << what << " parameter " << i;
}

// Without decay and with a rate of 1 the change of a step is the orthogonal factor, whose singular
// values Newton and Schulz's iteration brings near 1 (Jordan et al. 2024: 0.7 to 1.2).
TEST(MuonStep, MovesByAnOrthogonalFactor) {
  for (const auto& shape :
       {std::vector<int64_t>{20, 33}, {33, 20}, {12, 5, 3, 3}, {8, 3, 2, 3, 2}}) {
    for (const bool polar : {false, true}) {
      const at::Tensor p = torch::zeros(shape).requires_grad_();
      torch::manual_seed(1);
      Muon muon({p}, in_fp32(1).weight_decay(0).adjust_lr(AdjustLr::none).polar_express(polar));
      set_grad(p, torch::randn(shape));
      muon.step();
      const at::Tensor values = at::linalg_svdvals(p.detach().flatten(1));
      EXPECT_GT(values.min().item<double>(), polar ? 0.8 : 0.6) << shape << polar;
      EXPECT_LT(values.max().item<double>(), polar ? 1.2 : 1.3) << shape << polar;
    }
  }
}

TEST(MuonStep, AdjustsTheRateByTheSides) {
  const auto change = [](AdjustLr adjust) {
    const at::Tensor p = parameter({12, 3}), before = p.detach().clone();
    walk({p}, in_fp32(1e-3).weight_decay(0).adjust_lr(adjust), {}, 1);
    return (p.detach() - before).norm().item<double>();
  };
  const double plain = change(AdjustLr::none);
  EXPECT_NEAR(change(AdjustLr::original) / plain, 2, 1e-3);
  EXPECT_NEAR(change(AdjustLr::spectral_unclamped) / plain, 2, 1e-3);
  EXPECT_NEAR(change(AdjustLr::match_rms_adamw) / plain, 0.2 * std::sqrt(12), 1e-3);
}

TEST(MuonStep, SplitsRowsAsParametersOfTheirOwn) {
  for (const std::vector<int64_t>& rows : {std::vector<int64_t>{6, 6, 6}, {10, 4, 4}, {18}}) {
    for (const char* path : {"", "aten"}) {
      const ScopedEnvironment forced("DEMI_KERNELS", path);
      const at::Tensor whole = parameter({18, 4});
      Tensors parts;
      for (const at::Tensor& part : whole.detach().split_with_sizes(rows))
        parts.push_back(part.clone().requires_grad_());
      Muon one({whole}, in_fp32().split_rows(rows)), several(parts, in_fp32());
      for (int step = 0; step < 4; ++step) {
        set_gradients({whole}, step);
        const auto grads = whole.grad().split_with_sizes(rows);
        for (size_t i = 0; i < parts.size(); ++i) set_grad(parts[i], grads[i].clone());
        one.step();
        several.step();
      }
      expect_near({whole.detach()}, {at::cat(parts).detach()}, 1e-6, path);
    }
  }
}

TEST(MuonStep, BatchedIsOneByOneWithinRoundings) {
  const auto made = [] {
    return Tensors{parameter({6, 9}),
                   parameter({9, 6}, at::kFloat, 2),
                   parameter({6, 9}, at::kFloat, 3),
                   parameter({6, 9}, at::kFloat, 4),
                   parameter({200, 100}, at::kFloat, 5),
                   parameter({200, 100}, at::kFloat, 6)};
  };
  expect_near(walk(made(), in_fp32().batched(true)), walk(made(), in_fp32()), 1e-5);
  const std::vector<int64_t> halves{100, 100};
  const Tensors large{parameter({200, 100}, at::kFloat, 5)},
      same{parameter({200, 100}, at::kFloat, 5)};
  expect_near(walk(large, in_fp32().split_rows(halves).batched(true)),
              walk(same, in_fp32().split_rows(halves)), 1e-5);
}

TEST(MuonStep, LayoutsOfMatricesAreFollowed) {
  const at::Tensor row_major = parameter({8, 5});
  const at::Tensor column_major = row_major.detach().t().contiguous().t().requires_grad_();
  expect_near({walk({column_major}, in_fp32())[0].detach()},
              {walk({row_major}, in_fp32())[0].detach()}, 1e-6);
  // The rows of a convolution need not lie one after the other.
  const at::Tensor plain = parameter({4, 3, 2, 2});
  const at::Tensor permuted =
      plain.detach().permute({1, 2, 3, 0}).contiguous().permute({3, 0, 1, 2}).requires_grad_();
  EXPECT_EQ(permuted.stride(0), 1);
  expect_near({walk({permuted}, in_fp32())[0].detach()}, {walk({plain}, in_fp32())[0].detach()},
              1e-5);
}

TEST(MuonStep, ASkippedStepLeavesTheMomentumAlone) {
  const testing::EmulatedDevice device;
  for (const bool emulated : {false, true}) {
    const Tensors p{parameter({6, 4}), parameter({5, 7})};
    MuonOn muon(p, in_fp32(), emulated ? device : machine_backend());
    set_gradients(p, 1);
    muon.step();
    const auto before = muon.state_tensors();
    const at::Tensor momentum = before.at("0.momentum_buffer").clone();
    const at::Tensor weight = p[0].detach().clone();
    set_gradients(p, 2);
    p[1].mutable_grad()[0][0] = kInf;
    muon.step();
    EXPECT_TRUE(muon.last_step().skipped());
    EXPECT_TRUE(at::equal(muon.state_tensors().at("0.momentum_buffer"), momentum)) << emulated;
    EXPECT_TRUE(at::equal(p[0].detach(), weight)) << emulated;
    EXPECT_EQ(muon.state_tensors().at("0.step").item<int64_t>(), 1);
  }
}

TEST(MuonStep, ClipsBeforeTheMomentum) {
  const at::Tensor p = parameter({6, 4});
  Muon muon({p}, in_fp32().momentum(0.5));
  set_gradients({p}, 1);
  const double norm = p.grad().norm().item<double>();
  const at::Tensor gradient = p.grad().clone();
  clip_grad_norm_({p}, 0.25 * norm);
  muon.step();
  EXPECT_TRUE(at::allclose(muon.state_tensors().at("0.momentum_buffer"), gradient * 0.125, 1e-4));
}

TEST(MuonStep, ADevicesBitsAreTheHosts) {
  const testing::EmulatedDevice device;
  for (const bool with_sgd : {false, true})
    for (const auto moments : {Moments::fp32, Moments::bf16, Moments::int8})
      for (const bool batched : {false, true}) {
        const MuonOptions options = in_fp32().sgd(with_sgd ? 1 : 0).batched(batched);
        const auto made = [] {
          return Tensors{parameter({130, 131}), parameter({80, 70}, at::kBFloat16, 2),
                         parameter({80, 70}, at::kBFloat16, 3), parameter({3, 5})};
        };
        const Tensors p = made(), q = made();
        const StepOptions step{.moments = moments, .weight_mode = WeightMode::split};
        MuonOn there(p, options, device, step);
        Muon here(q, options, step);
        for (int t = 0; t < 3; ++t) {
          for (const auto& all : {p, q}) set_gradients(all, t);
          there.step();
          here.step();
        }
        expect_same(p, q, with_sgd ? "with sgd" : "alone");
      }
}

// Gradients of full rank: else the roundings alone are what the products make orthogonal.
Tensors walk_at_random(StepOptions step_options) {
  const Tensors p{parameter({90, 80}), parameter({90, 80}, at::kFloat, 2)};
  Muon muon(p, in_fp32(), step_options);
  torch::manual_seed(1);
  for (int step = 0; step < 10; ++step) {
    for (const auto& one : p) set_grad(one, torch::randn({90, 80}));
    muon.step();
  }
  return p;
}

TEST(MuonStep, StatesInFewerBytesAreNear) {
  const Tensors expected = walk_at_random({});
  for (const auto moments : {Moments::bf16, Moments::int8})
    expect_near(walk_at_random({.moments = moments}), expected, 2e-3);
}

TEST(MuonStep, SplitWeightsAreTrainedAsMasters) {
  const auto made = [] { return Tensors{parameter({90, 80}, at::kBFloat16)}; };
  const Tensors expected = walk(made(), in_fp32(), {}, 3);
  const Tensors split = walk(made(), in_fp32(), {.weight_mode = WeightMode::split}, 3);
  EXPECT_LT((split[0] != expected[0]).sum().item<int64_t>(), 10);
  expect_near(walk(made(), in_fp32(), {.weight_mode = WeightMode::stochastic}, 3), expected, 5e-2);
}

TEST(MuonStep, GoesOnFromAStateWithTheSameBits) {
  for (const double sgd : {0.0, 1.0}) {
    const Tensors p{parameter({6, 4}), parameter({70, 80}, at::kFloat, 2)};
    Muon muon(p, in_fp32().sgd(sgd).adjust_lr(AdjustLr::match_rms_adamw).ns_steps(4));
    for (int step = 0; step < 3; ++step) {
      set_gradients(p, step);
      muon.step();
    }
    Tensors q;
    for (const auto& one : p) q.push_back(one.detach().clone().requires_grad_());
    Muon other(q, in_fp32(7));
    std::stringstream file;
    torch::save(muon, file);
    torch::load(other, file);
    for (int step = 3; step < 5; ++step) {
      for (const auto& all : {p, q}) set_gradients(all, step);
      muon.step();
      other.step();
    }
    expect_same(p, q);
    EXPECT_EQ(muon.group_numbers(), other.group_numbers());
  }
}

TEST(MuonStep, StandsBesideAdamWInOneOptimizer) {
  for (const char* path : {"", "aten"}) {
    const ScopedEnvironment forced("DEMI_KERNELS", path);
    const Tensors p{parameter({6, 4}), parameter({9}), parameter({5, 7})};
    const Tensors q{parameter({6, 4}), parameter({9}), parameter({5, 7})};
    std::vector<torch::optim::OptimizerParamGroup> groups;
    groups.emplace_back(Tensors{p[0], p[2]}, std::make_unique<MuonOptions>(in_fp32()));
    groups.emplace_back(Tensors{p[1]}, std::make_unique<AdamWOptions>(1e-2));
    MultiOptimizer mine(groups);
    Muon muon({q[0], q[2]}, in_fp32());
    AdamW adamw({q[1]}, AdamWOptions(1e-2));
    for (int step = 0; step < 3; ++step) {
      for (const auto& all : {p, q}) set_gradients(all, step);
      mine.step();
      muon.step();
      adamw.step();
    }
    expect_same(p, q, path);
    EXPECT_EQ(mine.rule_name(), "Muon, AdamW");
  }
}

// The region's kernels would choose the dtype of the products.
TEST(MuonStep, ARegionAroundTheStepChangesNothing) {
  const Tensors p{parameter({60, 40})}, q{parameter({60, 40})};
  walk(p, in_fp32());
  at::autocast::set_autocast_enabled(at::kCPU, true);
  walk(q, in_fp32());
  at::autocast::set_autocast_enabled(at::kCPU, false);
  expect_same(q, p);
}

TEST(MuonStep, OptionsMayChangeBetweenSteps) {
  const Tensors p{parameter({12, 3})}, q{parameter({12, 3})};
  Muon changed(p, in_fp32()), other(q, in_fp32().ns_steps(3).adjust_lr(AdjustLr::none));
  const auto step = [](Muon& muon, const Tensors& all, int t) {
    set_gradients(all, t);
    muon.step();
  };
  step(changed, p, 0);
  step(other, q, 0);
  for (size_t i = 0; i < p.size(); ++i) {
    const at::NoGradGuard no_grad;
    at::Tensor(q[i]).copy_(p[i]);
  }
  static_cast<MuonOptions&>(changed.param_groups()[0].options())
      .ns_steps(3)
      .adjust_lr(AdjustLr::none);
  step(changed, p, 1);
  step(other, q, 1);
  expect_same(p, q);
}

TEST(MuonStep, AParameterWithoutAGradientStays) {
  const Tensors p{parameter({6, 4}), parameter({6, 4}, at::kFloat, 2)};
  Muon muon(p, in_fp32().batched(true));
  set_gradients(p, 1);
  muon.step();
  const at::Tensor before = p[1].detach().clone();
  p[1].mutable_grad() = at::Tensor();
  muon.step();
  EXPECT_TRUE(at::equal(p[1].detach(), before));
  EXPECT_EQ(muon.state_tensors().at("1.step").item<int64_t>(), 1);
}

TEST(MuonStep, EmptyMatricesAreStepped) {
  for (const char* path : {"", "aten"}) {
    const ScopedEnvironment forced("DEMI_KERNELS", path);
    const Tensors p{torch::zeros({0, 3}).requires_grad_(), torch::zeros({3, 0}).requires_grad_(),
                    parameter({2, 2})};
    walk(p, in_fp32());
    EXPECT_TRUE(p[2].detach().isfinite().all().item<bool>());
  }
}

TEST(MuonStep, AGradientOfZerosChangesNothingButDecay) {
  const at::Tensor p = parameter({6, 4}), before = p.detach().clone();
  Muon muon({p}, in_fp32(0.1).weight_decay(0.5));
  set_grad(p, torch::zeros({6, 4}));
  muon.step();
  EXPECT_TRUE(at::allclose(p.detach(), before * 0.95, 1e-6));
}

TEST(MuonStep, WrongOptionsAreNamed) {
  const Tensors p{parameter({6, 4})};
  const auto refused = [&](const MuonOptions& options, const char* words) {
    EXPECT_THAT(complaint([&] { Muon(p, options); }), HasSubstr(words));
  };
  refused(MuonOptions(-1), "lr");
  refused(MuonOptions(1).momentum(1), "momentum");
  refused(MuonOptions(1).ns_steps(100), "ns_steps");
  refused(MuonOptions(1).ns_coefficients({1, std::nan(""), 0}), "ns_coefficients");
  refused(MuonOptions(1).sgd(-1), "sgd");
  refused(MuonOptions(1).muon(kInf), "muon");
  refused(MuonOptions(1).eps(-1), "eps");
  refused(MuonOptions(1).split_rows({3, 2}), "split_rows");
  refused(MuonOptions(1).split_rows({6, 0}), "split_rows");
  Muon muon(p);
  for (const double wrong : {-1.0, 4.0, 0.5}) {
    auto numbers = muon.group_numbers();
    numbers[0]["adjust_lr"] = wrong;
    EXPECT_THAT(complaint([&] { muon.prepare_state({}, numbers); }), HasSubstr("adjust_lr"));
  }
}

TEST(MuonStep, WhatIsNoMatrixIsRefused) {
  for (const auto& shape : {std::vector<int64_t>{}, {5}}) {
    const std::string message = complaint([&] {
      Muon({parameter({2, 2}), torch::zeros(shape).requires_grad_()});
    });
    EXPECT_THAT(message, HasSubstr("no matrix"));
    EXPECT_THAT(message, HasSubstr("muon_groups"));
  }
  Muon muon({parameter({2, 2})});
  EXPECT_THROW(muon.add_param_group({{torch::zeros({3}).requires_grad_()}}), UsageError);
  EXPECT_EQ(muon.param_groups().size(), 1U);
}

}  // namespace
}  // namespace demi::optim
