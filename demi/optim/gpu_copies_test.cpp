// Copies of weights on a real GPU; skipped where there is none (weights/streams_test.cpp and
// copies_test.cpp then have to do).
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "demi/optim/ema.h"
#include "demi/optim/gpu_testing.h"
#include "demi/optim/sgd.h"
#include "demi/optim/testing.h"
#include "demi/weights/weights.h"

namespace demi::optim {
namespace {

using namespace testing;

class GpuCopies : public GpuTest {
 protected:
  void SetUp() override {
    GpuTest::SetUp();
    weights::set_mode(weights::Mode::keep);
  }
  void TearDown() override { weights::set_mode(before_); }

  static c10::Stream another_stream() {
    return c10::impl::VirtualGuardImpl(c10::kCUDA).getStreamFromGlobalPool({c10::kCUDA, 0});
  }

 private:
  weights::Mode before_ = weights::mode();
};

bool is_right(const at::Tensor& p) {
  return at::equal(weights::low_precision(p, at::kBFloat16).detach(), p.detach().to(at::kBFloat16));
}

TEST_F(GpuCopies, AreRightAfterEveryReplayWhateverHappensBetween) {
  torch::nn::Linear model(64, 64);
  model->to(at::kCUDA);
  const at::Tensor p = model->weight;
  EMA average(*model, 0.5);
  SGD sgd({p}, SGDOptions(0.1));
  const at::Tensor fixed = at::ones_like(p, at::kBFloat16);
  const auto step = [&] {
    set_grad(p, fixed);
    sgd.step();
  };
  weights::low_precision(p, at::kBFloat16);
  step();
  const Graph graph(step);
  const StepResult result = sgd.last_step();  // the graph writes it
  for (int round = 0; round < 3; ++round) {
    graph.replay();
    EXPECT_TRUE(is_right(p)) << round;
    average.swap();
    EXPECT_TRUE(is_right(p)) << "average " << round;
    average.swap();
    graph.replay();
    EXPECT_TRUE(is_right(p)) << "swapped " << round;
    weights::drop();
    const at::Tensor elsewhere = at::zeros({64, 64}, p.options().dtype(at::kBFloat16));
    graph.replay();
    EXPECT_TRUE(at::equal(elsewhere, at::zeros_like(elsewhere))) << "a replay wrote there";
    EXPECT_TRUE(is_right(p)) << "dropped " << round;
  }
}

TEST_F(GpuCopies, ACastIsOrderedBeforeWhoeverUsesTheCopyOnAnotherStream) {
  const at::Tensor p = at::ones({4096, 4096}, at::TensorOptions(at::kCUDA)).requires_grad_();
  weights::own(p);
  torch::cuda::synchronize();
  for (int round = 0; round < 5; ++round) {
    weights::drop();
    at::Tensor busy = at::ones({4096, 4096}, at::TensorOptions(at::kCUDA));
    for (int i = 0; i < 20; ++i) busy = at::mm(busy, busy).mul_(1e-4);  // the cast queues up here
    weights::low_precision(p, at::kBFloat16);
    at::Tensor seen;
    {
      const c10::StreamGuard other(another_stream());
      seen = weights::low_precision(p, at::kBFloat16).detach().clone();
    }
    torch::cuda::synchronize();
    EXPECT_TRUE(at::equal(seen, at::ones_like(seen))) << round;
  }
  weights::disown(p);
}

}  // namespace
}  // namespace demi::optim
