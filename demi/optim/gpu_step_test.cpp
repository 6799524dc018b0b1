// The step on a real GPU; skipped where there is none (device_step_test.cpp then has to do).
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <limits>

#include "demi/optim/clip.h"
#include "demi/optim/gpu_testing.h"
#include "demi/optim/kinds_testing.h"
#include "demi/optim/testing.h"

namespace demi::optim {
namespace {

using namespace testing;

class GpuStep : public GpuTest {};

/// Steps with a scale and clipping; the fourth has an Inf.
Tensors run(int kind, c10::Device device, StepOptions options) {
  Tensors p;
  for (const auto& x : {parameter({33, 600}), parameter({7}), parameter({100}, at::kHalf)})
    p.push_back(x.detach().to(device).requires_grad_());
  const auto optimizer = one_of_kind(kind, p, options);
  const at::Tensor scale = at::scalar_tensor(8, at::kFloat).to(device);
  std::vector<StepResult> results;
  for (int step = 0; step < 8; ++step) {
    for (const auto& x : p) {
      const auto dtype = x.scalar_type() == at::kHalf ? at::kHalf : at::kBFloat16;
      set_grad(x, (gradient(x, dtype, step) * (step == 3 ? kInf : 8)).to(device));
    }
    optimizer->set_scale(scale);
    clip_grad_norm_(p, 0.5);
    optimizer->step();
    results.push_back(optimizer->last_step());
  }
  for (int step = 0; step < 8; ++step) EXPECT_EQ(results[step].skipped(), step == 3) << step;
  Tensors all;
  for (const auto& x : p) all.push_back(x.detach().cpu());
  for (const auto& [name, tensor] : optimizer->state_tensors()) all.push_back(tensor.cpu());
  return all;
}

TEST_F(GpuStep, AgreesWithTheReference) {
  for (int kind = 0; kind < kKinds; ++kind) {
    const Tensors expected = run(kind, c10::kCPU, {.path = kernels::Path::reference});
    const Tensors seen = run(kind, c10::Device(c10::kCUDA, 0), {});
    ASSERT_EQ(expected.size(), seen.size());
    // The device's pow may differ in its last bit, once a step.
    for (size_t i = 0; i < seen.size(); ++i)
      EXPECT_TRUE(at::allclose(expected[i].to(at::kDouble), seen[i].to(at::kDouble), 2e-6, 1e-7))
          << kind << " " << i;
  }
}

TEST_F(GpuStep, ThreeLaunchesWhateverTheNumberOfTensors) {
  const kernels::CudaKernels* kernels = kernels::cuda_kernels();
  for (const int tensors : {1, 40, 161}) {
    for (int kind = 0; kind < kKinds; ++kind) {
      Tensors p;
      for (int i = 0; i < tensors; ++i)
        p.push_back(parameter({9}, at::kFloat, i).detach().cuda().requires_grad_());
      const auto optimizer = one_of_kind(kind, p);
      for (const auto& x : p) set_grad(x, gradient(x, at::kBFloat16, 0).cuda());
      for (int step = 0; step < 2; ++step) {
        const auto before = kernels->launches();
        clip_grad_norm_(p, 1.0);
        optimizer->step();
        EXPECT_EQ(kernels->launches() - before, kind == kLamb ? 4 : 3);
      }
    }
  }
}

TEST_F(GpuStep, ACapturedStepIsReplayed) {
  for (int kind = 0; kind < kKinds; ++kind) {
    Tensors numbers;
    for (const bool captured : {false, true}) {
      const at::Tensor p = parameter({20000}).detach().cuda().requires_grad_();
      const auto optimizer = one_of_kind(kind, {p});
      const at::Tensor fixed = at::empty_like(p, at::kBFloat16);
      const auto step = [&] {
        set_grad(p, fixed);
        clip_grad_norm_({p}, 0.25);
        optimizer->step();
      };
      const auto load = [&](int s) {
        fixed.copy_(gradient(p, at::kBFloat16, s) * (s == 3 ? kInf : 1));
      };
      load(0);
      step();
      std::optional<Graph> graph;
      if (captured) graph.emplace(step);
      const StepResult result = optimizer->last_step();  // holds what the graph writes it into
      for (int s = 1; s < 6; ++s) {
        load(s);
        captured ? graph->replay() : step();
        EXPECT_EQ(captured && result.skipped(), captured && s == 3) << s;
      }
      EXPECT_EQ(optimizer->state_tensors().at("taken").item<int64_t>(), 5);
      numbers.push_back(p.detach().cpu());
    }
    EXPECT_TRUE(at::equal(numbers[0], numbers[1])) << kind;
  }
}

}  // namespace
}  // namespace demi::optim
