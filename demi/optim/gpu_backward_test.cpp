// Backward of a weight with a kept copy, captured on a real GPU after a step on another stream;
// skipped where there is none (Gradients.HoldNoAccumulator... of demi/weights then has to do).
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "demi/optim/gpu_testing.h"
#include "demi/optim/sgd.h"
#include "demi/weights/weights.h"

namespace demi::optim {
namespace {

class GpuBackward : public testing::GpuTest {
 protected:
  void TearDown() override { weights::set_captures_step(false); }
};

TEST_F(GpuBackward, IsCapturedAfterAnEagerStepOnTheDefaultStream) {
  const c10::Device device(c10::kCUDA, 0);
  for (const bool captures_step : {false, true}) {
    weights::set_captures_step(captures_step);
    const auto p = torch::full({64, 64}, 8., torch::device(device)).requires_grad_();
    const auto x = torch::ones({64, 64}, torch::device(device).dtype(at::kBFloat16));
    SGD optimizer({p}, 1.0);
    const auto train = [&] {
      optimizer.zero_grad();
      const auto low = weights::low_precision(p, at::kBFloat16);
      (low * x).sum().backward();
      optimizer.step();
    };
    {
      const c10::StreamGuard eager(
          c10::impl::VirtualGuardImpl(c10::kCUDA).getDefaultStream(device));
      train();
      torch::cuda::synchronize();
    }
    train();
    const testing::Graph graph(train);
    graph.replay();
    graph.replay();
    torch::cuda::synchronize();
    EXPECT_TRUE(p.detach().cpu().equal(torch::full({64, 64}, 4.))) << p.detach()[0][0];
  }
}

}  // namespace
}  // namespace demi::optim
