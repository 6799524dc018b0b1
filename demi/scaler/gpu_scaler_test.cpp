// A whole training step on a real GPU; skipped if there is none.
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cmath>
#include <limits>
#include <memory>

#include "demi/autocast/autocast.h"
#include "demi/optim/adamw.h"
#include "demi/optim/clip.h"
#include "demi/optim/gpu_testing.h"
#include "demi/optim/testing.h"
#include "demi/scaler/device_scale.h"
#include "demi/scaler/grad_scaler.h"

namespace demi {
namespace {

using optim::testing::Graph;
using optim::testing::parameter;

class GpuScaler : public optim::testing::GpuTest {};

// Forward, backward, unscaling, clipping, step and scale in one graph. Whatever waited for the
// device would fail the capture.
TEST_F(GpuScaler, AWholeStepIsCapturedAndReplayed) {
  constexpr int kInfAt = 4;
  std::vector<at::Tensor> numbers;
  for (const bool captured : {false, true}) {
    const at::Tensor w = parameter({64, 64}).detach().cuda().requires_grad_();
    optim::AdamW adamw({w}, optim::AdamWOptions(0.01));
    GradScaler scaler(GradScalerOptions{.init_scale = 1024, .growth_interval = 3});
    const at::Tensor x = at::empty({16, 64}, at::TensorOptions(at::kCUDA).dtype(at::kFloat));
    const auto step = [&] {
      w.mutable_grad().reset();
      at::Tensor output;
      {
        const Autocast region(torch::kCUDA, torch::kHalf);
        output = at::mm(x, w);
      }
      scaler.scale(output.to(at::kFloat).square().mean()).backward();
      scaler.unscale_(adamw);
      optim::clip_grad_norm_({w}, 0.5);
      scaler.step(adamw);
      scaler.update();
    };
    const auto load = [&](int s) {
      x.copy_((at::arange(16 * 64, at::kFloat) * 0.3 + s).sin().reshape({16, 64}));
      if (s == kInfAt) x.fill_(std::numeric_limits<float>::infinity());
    };
    for (int s = 0; s < 2; ++s) {
      load(s);
      step();
    }
    std::optional<Graph> graph;
    if (captured) graph.emplace(step);
    const StepResult result = adamw.last_step();
    for (int s = 2; s < 8; ++s) {
      load(s);
      captured ? graph->replay() : step();
      EXPECT_EQ(captured && result.skipped(), captured && s == kInfAt) << s;
    }
    numbers.push_back(w.detach().cpu());
    numbers.push_back(torch::tensor(scaler.get_scale()));
  }
  EXPECT_TRUE(at::equal(numbers[0], numbers[2]));
  EXPECT_TRUE(at::equal(numbers[1], numbers[3]));
}

TEST_F(GpuScaler, AnAmaxScaleIsAPowerOfTwoToTheBit) {
  for (int power = -1022; power <= 1023; ++power)
    ASSERT_EQ(DeviceScale::power_of_two(torch::full({}, power, at::kInt).cuda()).item<double>(),
              std::ldexp(1.0, power));
}

// The graph goes on counting skipped steps into pinned memory, and moves the scale.
TEST_F(GpuScaler, AGraphOutlivesItsScaler) {
  const at::Tensor w = parameter({64}).detach().cuda().requires_grad_();
  optim::AdamW adamw({w});
  auto scaler = std::make_unique<GradScaler>();
  const auto step = [&] {
    w.mutable_grad().reset();
    scaler->scale(w.square().sum()).backward();
    scaler->step(adamw);
    scaler->update();
  };
  step();
  const Graph graph(step);
  const auto take_memory = [] {
    std::vector<at::Tensor> all;
    for (int i = 0; i < 256; ++i) {
      all.push_back(torch::full({2}, 7.F, at::TensorOptions().pinned_memory(true)));
      all.push_back(torch::full({1}, 7.F, at::kCUDA));
    }
    return all;
  };
  // The graph has no pool of its own: what step() has given back, its replays write to.
  const std::vector<at::Tensor> temporaries = take_memory();
  scaler.reset();
  const std::vector<at::Tensor> others = take_memory();  // what the scaler may have given back
  for (int i = 0; i < 8; ++i) graph.replay();
  c10::impl::VirtualGuardImpl(c10::kCUDA).synchronizeDevice(0);
  for (const auto& other : others) EXPECT_TRUE(at::equal(other, torch::full_like(other, 7)));
}

}  // namespace
}  // namespace demi
