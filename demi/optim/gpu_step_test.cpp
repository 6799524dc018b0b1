// The step on a real GPU; skipped if there is none (device_step_test.cpp covers the rest).
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <limits>

#include "demi/optim/clip.h"
#include "demi/optim/gpu_testing.h"
#include "demi/optim/kinds_testing.h"
#include "demi/optim/testing.h"
#include "demi/step/pending_step.h"

namespace demi::optim {
namespace {

using namespace testing;

class GpuStep : public GpuTest {};

/// Steps with a scale and clipping; the fourth has an Inf.
Tensors run(const Kind& kind, c10::Device device, StepOptions options) {
  Tensors p;
  for (const auto& x : {parameter({33, 600}), parameter({7}), parameter({100}, at::kHalf)})
    p.push_back(x.detach().to(device).requires_grad_());
  const auto optimizer = kind.make(p, options);
  const at::Tensor scale = at::scalar_tensor(8, at::kFloat).to(device);
  std::vector<StepResult> results;
  for (int step = 0; step < 8; ++step) {
    for (const auto& x : p) {
      const auto dtype = x.scalar_type() == at::kHalf ? at::kHalf : at::kBFloat16;
      set_grad(x, (gradient(x, dtype, step) * (step == 3 ? kInf : 8)).to(device));
    }
    optimizer->pending().set_scale(scale);
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
  for (const Kind& kind : kKinds) {
    SCOPED_TRACE(kind.name);
    const Tensors expected = run(kind, c10::kCPU, {.path = kernels::Path::reference});
    const Tensors seen = run(kind, c10::Device(c10::kCUDA, 0), {});
    ASSERT_EQ(expected.size(), seen.size());
    // The device's pow may differ in its last bit, once a step.
    for (size_t i = 0; i < seen.size(); ++i)
      EXPECT_TRUE(at::allclose(expected[i].to(at::kDouble), seen[i].to(at::kDouble), 2e-6, 1e-7))
          << i;
  }
}

TEST_F(GpuStep, ThreeLaunchesWhateverTheNumberOfTensors) {
  const kernels::CudaKernels* kernels = kernels::cuda_kernels();
  for (const int tensors : {1, 40, 161}) {
    for (const Kind& kind : kKinds) {
      SCOPED_TRACE(kind.name);
      Tensors p;
      for (int i = 0; i < tensors; ++i)
        p.push_back(parameter({9}, at::kFloat, i).detach().cuda().requires_grad_());
      const auto optimizer = kind.make(p);
      for (const auto& x : p) set_grad(x, gradient(x, at::kBFloat16, 0).cuda());
      for (int step = 0; step < 2; ++step) {
        const auto before = kernels->launches();
        clip_grad_norm_(p, 1.0);
        optimizer->step();
        EXPECT_EQ(kernels->launches() - before, kind.id == KindId::kLamb ? 4 : 3);
      }
    }
  }
}

TEST_F(GpuStep, ACapturedStepIsReplayed) {
  for (const Kind& kind : kKinds) {
    SCOPED_TRACE(kind.name);
    Tensors numbers;
    for (const bool captured : {false, true}) {
      const at::Tensor p = parameter({20000}).detach().cuda().requires_grad_();
      const auto optimizer = kind.make({p});
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
    EXPECT_TRUE(at::equal(numbers[0], numbers[1]));
  }
}

TEST_F(GpuStep, LambOfALongTensorAgreesWithTheReference) {
  Tensors numbers;
  for (const c10::Device device : {c10::Device(c10::kCPU), c10::Device(c10::kCUDA, 0)}) {
    const at::Tensor p = parameter({300 * 16384 + 5}).detach().to(device).requires_grad_();
    const auto lamb = make(KindId::kLamb, {p});
    for (int step = 0; step < 3; ++step) {
      set_grad(p, gradient(p, at::kBFloat16, step).to(device));
      lamb->step();
    }
    numbers.push_back(p.detach().cpu());
  }
  EXPECT_TRUE(at::allclose(numbers[0], numbers[1], 2e-6, 1e-7));
}

TEST_F(GpuStep, AModelThatMovesToTheDeviceIsStepped) {
  for (const Kind& kind : kKinds) {
    SCOPED_TRACE(kind.name);
    const at::Tensor stays = parameter({33}), moves = parameter({33});
    const auto here = kind.make({stays}), there = kind.make({moves});
    for (int step = 0; step < 4; ++step) {
      if (step == 2) {
        there->zero_grad();
        moves.set_data(moves.detach().cuda());
      }
      set_grad(stays, gradient(stays, at::kFloat, step));
      set_grad(moves, gradient(stays, at::kFloat, step).to(moves.device()));
      here->step();
      there->step();
    }
    EXPECT_TRUE(at::allclose(stays, moves.detach().cpu(), 2e-6, 1e-7));
  }
}

// The device is kept busy, so that a reader that does not wait gets the old numbers.
TEST_F(GpuStep, AResultCanBeReadUnderAnotherStream) {
  const at::Tensor p = parameter({1000}).detach().cuda().requires_grad_();
  const auto sgd = make(KindId::kSgd, {p});
  const at::Tensor work = torch::randn({4096, 4096}, at::kCUDA);
  const c10::impl::VirtualGuardImpl guard(c10::kCUDA);
  for (int step = 0; step < 6; ++step) {
    const bool bad = step % 2 == 1;
    set_grad(p, gradient(p, at::kFloat, step).cuda() * (bad ? kInf : 1));
    for (int i = 0; i < 20; ++i) at::mm(work, work);
    sgd->step();
    const StepResult result = sgd->last_step();
    const c10::StreamGuard other(guard.getStreamFromGlobalPool(p.device()));
    EXPECT_EQ(result.found_inf().item<float>() != 0, bad);
    EXPECT_EQ(result.skipped(), bad);
  }
}

// Tables that go while their last step has not run yet: what takes their memory, on their own
// stream, must not be read by that step.
TEST_F(GpuStep, TablesThatGoAreNotReusedUnderAStepOfAnotherStream) {
  const at::Tensor p = parameter({100000}).detach().cuda().requires_grad_();
  const at::Tensor expected = parameter({100000});
  const at::Tensor work = torch::randn({4096, 4096}, at::kCUDA);
  const c10::impl::VirtualGuardImpl guard(c10::kCUDA);
  const c10::Stream first = guard.getStream(p.device());
  {
    auto adam = make(KindId::kAdam, {p}), same = make(KindId::kAdam, {expected});
    for (int step = 0; step < 2; ++step) {
      set_grad(expected, gradient(expected, at::kFloat, step));
      same->step();
      set_grad(p, p.grad().defined() ? p.grad().copy_(expected.grad()) : expected.grad().cuda());
      if (step == 0) {
        adam->step();
        p.sum().item<float>();  // all of it is done
        continue;
      }
      const c10::Stream side = guard.getStreamFromGlobalPool(p.device());
      const c10::StreamGuard other(side);
      for (int i = 0; i < 40; ++i) at::mm(work, work);
      adam->step();
    }
  }
  EXPECT_EQ(guard.getStream(p.device()), first);
  for (int i = 0; i < 50; ++i) at::full({100000}, 1e30F, at::kCUDA);  // where the moments were
  guard.synchronizeDevice(0);
  EXPECT_TRUE(at::allclose(p.detach().cpu(), expected, 2e-6, 1e-7));
}

// In a process of its own (gpu.first_look), since a context is made once.
TEST(GpuFirstLook, MakesNoContextOnADeviceThatIsNotUsed) {
  const CudaLibrary& library = load_cuda();
  if (!library.loaded) GTEST_SKIP() << library.reason;
  if (torch::cuda::device_count() < 2) GTEST_SKIP() << "fewer than two CUDA devices";
  const auto context_on_first = [] {
    static void* driver = dlopen("libcuda.so.1", RTLD_NOW);
    const auto ask = reinterpret_cast<int (*)(int, unsigned*, int*)>(
        dlsym(driver, "cuDevicePrimaryCtxGetState"));
    unsigned flags = 0;
    int active = 0;
    ask(0, &flags, &active);
    return active != 0;
  };
  const at::Tensor p = torch::ones(8, at::TensorOptions(c10::Device(c10::kCUDA, 1)));
  p.requires_grad_();
  if (context_on_first()) GTEST_SKIP() << "LibTorch itself has made a context on device 0";
  const auto sgd = make(KindId::kSgd, {p});
  set_grad(p, torch::ones_like(p));
  sgd->step();
  EXPECT_FALSE(context_on_first());
}

}  // namespace
}  // namespace demi::optim
