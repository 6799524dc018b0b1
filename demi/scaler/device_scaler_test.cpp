// GradScaler with the step and the scale on an emulated device.
#include <ATen/record_function.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <limits>
#include <string_view>

#include "demi/optim/adamw.h"
#include "demi/optim/backend_testing.h"
#include "demi/optim/clip.h"
#include "demi/optim/sgd.h"
#include "demi/optim/testing.h"
#include "demi/scaler/backend_testing.h"
#include "demi/scaler/grad_scaler.h"
#include "demi/step/emulated_device_testing.h"
#include "demi/step/streams.h"
#include "demi/weights/recorded_warnings_testing.h"

namespace demi {
namespace {

using optim::testing::EmulatedDevice;
using optim::testing::kInf;
using optim::testing::On;
using optim::testing::parameter;
using optim::testing::set_grad;
using testing::ScalerOn;
using weights::testing::RecordedWarnings;

/// Counts, in this thread, tensor operations, and numbers that the host reads from tensors: on a
/// device each of those would wait.
class HostReads {
 public:
  HostReads() {
    count() = ops() = 0;
    handle_ = at::addThreadLocalCallback(at::RecordFunctionCallback(
        [](const at::RecordFunction& op) -> std::unique_ptr<at::ObserverContext> {
          ++ops();
          if (std::string_view(op.name()) == "aten::_local_scalar_dense") ++count();
          return nullptr;
        }));
  }
  ~HostReads() { at::removeCallback(handle_); }
  static int64_t& count() {
    static int64_t all = 0;
    return all;
  }
  static int64_t& ops() {
    static int64_t all = 0;
    return all;
  }

 private:
  at::CallbackHandle handle_;
};

/// A backward that leaves the scale itself, times `spoiled`, in each element.
void backward(GradScaler& scaler, const std::vector<at::Tensor>& p, float spoiled) {
  at::Tensor loss = torch::zeros({});
  for (const auto& x : p) {
    x.mutable_grad().reset();
    loss = loss + (x * x).sum();
  }
  scaler.scale(loss).backward();
  p.back().grad().mul_(spoiled);
}

struct Outcome {
  std::vector<at::Tensor> parameters;
  at::Tensor scales;
  std::vector<bool> skipped;
  int64_t reads = 0, launches = 0;
};

constexpr int kSteps = 24;

Outcome run_adamw(const optim::Backend& backend, optim::StepOptions options, bool clipped) {
  Outcome run;
  run.parameters = {parameter({40}), parameter({20000})};
  On<optim::AdamW> adamw(backend, run.parameters, optim::AdamWOptions(0.01), options);
  ScalerOn scaler(backend, {.growth_interval = 3});
  std::vector<StepResult> results;
  std::vector<at::Tensor> scales;
  backward(scaler, run.parameters, 1);  // state and tables are made at the first gradient
  scaler.step(adamw);
  scaler.update();
  const HostReads reads;
  const auto launches = EmulatedDevice::launches();
  for (int step = 0; step < kSteps; ++step) {
    backward(scaler, run.parameters, step % 5 == 4 ? kInf : 1);
    if (clipped) {
      scaler.unscale_(adamw);
      optim::clip_grad_norm_(run.parameters, 0.5);
    }
    results.push_back(scaler.step(adamw));
    scaler.update();
    scales.push_back(scaler.scale(torch::ones({})));
  }
  run.reads = HostReads::count();
  run.launches = EmulatedDevice::launches() - launches;
  for (const auto& result : results) run.skipped.push_back(result.skipped());
  run.scales = torch::stack(scales);
  return run;
}

TEST(DeviceScaler, TheLoopIsThatOfTheHostAndReadsNothing) {
  for (const bool clipped : {false, true}) {
    const Outcome expected =
        run_adamw(optim::machine_backend(), {.path = kernels::Path::reference}, clipped);
    const EmulatedDevice device;
    const Outcome seen = run_adamw(device, {}, clipped);
    EXPECT_TRUE(at::equal(expected.scales, seen.scales));
    EXPECT_EQ(expected.skipped, seen.skipped);
    EXPECT_EQ(seen.skipped[4], true);
    for (size_t i = 0; i < seen.parameters.size(); ++i)
      EXPECT_TRUE(at::equal(expected.parameters[i], seen.parameters[i]));
    EXPECT_EQ(seen.reads, 0);
    EXPECT_EQ(seen.launches, 3 * kSteps);
  }
}

// Each would cost a launch and its host time: torch.amp.GradScaler's update is one.
TEST(DeviceScaler, TheScaleMovesWithoutATensorOperation) {
  const EmulatedDevice device;
  const at::Tensor p = parameter({40});
  On<optim::SGD> sgd(device, {p}, optim::SGDOptions(1e-3));
  ScalerOn scaler(device, {.growth_interval = 1});
  for (int step = 0; step < 3; ++step) {
    backward(scaler, {p}, 1);
    scaler.step(sgd);
    const HostReads counted;
    scaler.update();
    if (step > 0) {
      EXPECT_EQ(HostReads::ops(), 0);
    }
  }
  EXPECT_EQ(scaler.get_scale(), 65536 * 8);
}

// Backward would multiply by the new scale.
TEST(DeviceScaler, AnOlderGraphIsRefusedAfterTheScaleMoved) {
  const EmulatedDevice device;
  const at::Tensor p = parameter({40});
  On<optim::SGD> sgd(device, {p}, optim::SGDOptions(1e-3));
  ScalerOn scaler(device, {.growth_interval = 1});
  const at::Tensor older = scaler.scale((p * p).sum());
  backward(scaler, {p}, 1);
  scaler.step(sgd);
  scaler.update();
  EXPECT_THROW(older.backward(), c10::Error);
}

TEST(DeviceScaler, SeveralOptimizersSkipTogether) {
  const EmulatedDevice device;
  const at::Tensor p = parameter({2}), q = parameter({3}), r = parameter({2});
  On<optim::SGD> first(device, {p}, optim::SGDOptions(1)),
      second(device, {q}, optim::SGDOptions(1));
  torch::optim::SGD foreign({r}, torch::optim::SGDOptions(1));
  ScalerOn scaler(device);
  backward(scaler, {p, r, q}, kInf);
  for (const auto& result : scaler.step({&first, &second, &foreign})) EXPECT_TRUE(result.skipped());
  scaler.update();
  EXPECT_EQ(scaler.get_scale(), 32768);
  EXPECT_TRUE(at::equal(p, parameter({2})));
  EXPECT_TRUE(at::equal(r, parameter({2})));
  backward(scaler, {p, r, q}, 1);
  for (const auto& result : scaler.step({&first, &second, &foreign})) {
    EXPECT_FALSE(result.skipped());
    EXPECT_EQ(result.scale(), 32768);
  }
  scaler.update();
  EXPECT_FALSE(at::equal(p, parameter({2})));
}

TEST(DeviceScaler, AStateWithoutAHistoryClearsTheOldOne) {
  const EmulatedDevice device;
  ScalerOn scaler(device, {.mode = ScaleMode::kAmax, .amax_window = 2});
  scaler.scale(torch::zeros({}));  // the numbers are on the device from now on
  const StateDict empty = scaler.state_dict();
  StateDict full = empty;
  full["_amax_history.0"] = 1000;
  full["_amax_history.1"] = 100;
  scaler.load_state_dict(full);
  EXPECT_EQ(scaler.state_dict().at("_amax_history.0"), 1000);
  full.erase("_amax_history.0");
  full.erase("_amax_history.1");
  scaler.load_state_dict(full);
  EXPECT_EQ(scaler.state_dict(), empty);
}

TEST(DeviceScaler, AForeignOptimizerCostsOneReadAStep) {
  const EmulatedDevice device;
  const at::Tensor p = parameter({2}), q = parameter({3});
  torch::optim::SGD sgd({p, q}, torch::optim::SGDOptions(0.1));
  ScalerOn scaler(device, {.record_grad_norm = true});
  const HostReads reads;
  backward(scaler, {p, q}, 1);
  const StepResult taken = scaler.step(sgd);
  scaler.update();
  EXPECT_EQ(HostReads::count(), 1);
  EXPECT_FALSE(taken.skipped());
  EXPECT_EQ(taken.scale(), 65536);
  backward(scaler, {p, q}, kInf);
  EXPECT_TRUE(scaler.step(sgd).skipped());
  EXPECT_NEAR(
      taken.grad_norm().value(),
      2 * std::hypot(parameter({2}).norm().item<double>(), parameter({3}).norm().item<double>()),
      1e-5);
}

TEST(DeviceScaler, ManySkipsInARowGiveOneWarningAndNobodyWaits) {
  const EmulatedDevice device;
  const at::Tensor p = parameter({2});
  On<optim::SGD> sgd(device, {p}, optim::SGDOptions(1e-3));
  ScalerOn scaler(device, {.warn_after_skips = 3});
  const RecordedWarnings heard;
  const auto step = [&](float spoiled) {
    backward(scaler, {p}, spoiled);
    scaler.step(sgd);
    scaler.update();
  };
  step(1);
  const HostReads reads;
  for (const float spoiled : {kInf, kInf, 1.F, kInf, kInf}) step(spoiled);
  EXPECT_TRUE(heard.messages().empty());
  for (int i = 0; i < 4; ++i) step(kInf);
  ASSERT_EQ(heard.messages().size(), 1U);
  EXPECT_NE(heard.messages()[0].find("the scale is now 2048"), std::string::npos)
      << heard.messages()[0];
  step(1);
  for (int i = 0; i < 3; ++i) step(kInf);
  EXPECT_EQ(heard.messages().size(), 2U);
  EXPECT_EQ(HostReads::count(), 0);
}

TEST(DeviceScaler, AmaxComesFromTheStepsRecord) {
  const EmulatedDevice device;
  const at::Tensor p = parameter({2});
  On<optim::SGD> sgd(device, {p}, optim::SGDOptions(0));
  ScalerOn scaler(device, {.init_scale = 4, .mode = ScaleMode::kAmax});
  scaler.scale(torch::zeros({}));
  set_grad(p, torch::tensor({4.F, -2.F}));
  scaler.step(sgd);
  scaler.update();
  EXPECT_EQ(scaler.get_scale(), 16384);
}

TEST(DeviceScaler, ADisabledOneHandsTheStepsOwnResultOn) {
  const at::Tensor p = parameter({2});
  optim::SGD sgd({p}, optim::SGDOptions(1));
  GradScaler scaler(GradScalerOptions{.enabled = false});
  set_grad(p, torch::tensor({3.F, 4.F}));
  EXPECT_EQ(scaler.step(sgd).grad_norm(), 5);
  set_grad(p, torch::tensor({3.F, kInf}));
  EXPECT_TRUE(scaler.step(sgd).skipped());
}

// A replay of the graph goes on writing the scale and the count of skips.
TEST(DeviceScaler, WhatIsCapturedOutlivesTheScaler) {
  EmulatedDevice device;
  const at::Tensor p = parameter({2});
  On<optim::SGD> sgd(device, {p}, optim::SGDOptions(1e-3));
  auto scaler = std::make_unique<ScalerOn>(device);
  const auto step = [&] {
    backward(*scaler, {p}, 1);
    scaler->step(sgd);
    scaler->update();
  };
  const std::size_t before = optim::kept_for_graphs();
  step();
  EXPECT_EQ(optim::kept_for_graphs(), before);
  device.begin_capture();
  step();
  const EmulatedDevice::Graph graph = device.end_capture();
  scaler.reset();
  EXPECT_EQ(optim::kept_for_graphs(), before + 6);  // scale, two trackers, two counts, mirror
}

}  // namespace
}  // namespace demi
