// Muon's step on a real GPU; skipped if there is none.
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "demi/optim/gpu_testing.h"
#include "demi/optim/muon.h"
#include "demi/optim/testing.h"

namespace demi::optim {
namespace {

using namespace testing;

class GpuStepOfMatrices : public GpuTest {};

/// Four steps, of which the third has an Inf, and the momentum behind them.
std::vector<at::Tensor> four_steps_of_muon(c10::Device device, const MuonOptions& options) {
  std::vector<at::Tensor> p;
  for (const auto& x : {parameter({96, 200}), parameter({200, 96}, at::kFloat, 2),
                        parameter({96, 200}, at::kFloat, 3), parameter({16, 3, 3, 3})})
    p.push_back(x.detach().to(device).requires_grad_());
  Muon muon(p, options);
  for (int step = 0; step < 4; ++step) {
    torch::manual_seed(step);
    for (const auto& x : p) set_grad(x, torch::randn(x.sizes()).to(at::kBFloat16).to(device));
    if (step == 2) p[1].mutable_grad()[0][0] = kInf;
    muon.step();
    EXPECT_EQ(muon.last_step().skipped(), step == 2);
  }
  std::vector<at::Tensor> all;
  for (const auto& x : p) all.push_back(x.detach().cpu());
  all.push_back(muon.state_tensors().at("0.momentum_buffer").cpu());
  return all;
}

// The products of a GPU add up in another order, and TF32 is off by default.
TEST_F(GpuStepOfMatrices, FollowsTheHost) {
  for (const bool batched : {false, true})
    for (const double sgd : {0.0, 1.0}) {
      const auto options =
          MuonOptions(0.02).products(MatrixProducts::fp32).batched(batched).sgd(sgd);
      const auto expected = four_steps_of_muon(c10::kCPU, options);
      const auto seen = four_steps_of_muon(c10::Device(c10::kCUDA, 0), options);
      for (size_t i = 0; i < seen.size(); ++i)
        EXPECT_TRUE(at::allclose(seen[i], expected[i], 0, 1e-4)) << i << " batched " << batched;
    }
}

// Whatever waits for the stream within a capture fails it.
TEST_F(GpuStepOfMatrices, WaitsForNothing) {
  const c10::Device device(c10::kCUDA, 0);
  const at::Tensor p = parameter({64, 48}).detach().to(device).requires_grad_();
  Muon muon({p}, MuonOptions(0.02));
  set_grad(p, torch::ones({64, 48}).to(device));
  muon.step();
  const Graph graph([&] { muon.step(); });
  const at::Tensor before = p.detach().clone();
  graph.replay();
  EXPECT_FALSE(at::equal(p.detach(), before));
}

}  // namespace
}  // namespace demi::optim
