// The rule of docs/guide/add_optimizer.md, in a build of demi that has it.
#include "demi/optim/yogi.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cmath>
#include <sstream>

#include "demi/kernels/path.h"
#include "demi/schedule/lr_scheduler.h"

namespace demi::optim {
namespace {

using kernels::Path;

std::vector<Path> paths() {
  std::vector<Path> usable;
  for (const kernels::PathStatus& status : kernels::paths())
    if (status.usable && status.path != Path::cuda) usable.push_back(status.path);
  return usable;
}

at::Tensor start(at::ScalarType dtype = at::kFloat) {
  return torch::arange(1, 38, at::kDouble).sin().to(dtype).requires_grad_();
}

at::Tensor gradient(int t) { return torch::arange(0, 37).add(3 * t).cos(); }

/// Algorithm 2 of the paper in FP64, with the L2 penalty in the gradient.
at::Tensor by_the_paper(at::Tensor x, int steps, double lr, double decay) {
  at::Tensor m = torch::zeros_like(x), v = torch::full_like(x, 1e-6);
  for (int t = 0; t < steps; ++t) {
    const at::Tensor g = gradient(t).to(at::kDouble) + decay * x;
    m = 0.9 * m + 0.1 * g;
    v = v - 0.001 * (v - g * g).sign() * g * g;
    x = x - lr * m / (v.sqrt() + 1e-3);
  }
  return x;
}

TEST(Yogi, FollowsThePaperOnEveryPath) {
  std::vector<at::Tensor> seen;
  for (const Path path : paths()) {
    const at::Tensor p = start();
    Yogi yogi({p}, YogiOptions(0.01).weight_decay(0.1), {.path = path});
    for (int t = 0; t < 50; ++t) {
      p.mutable_grad() = gradient(t);
      yogi.step();
    }
    EXPECT_TRUE(at::allclose(p.detach().to(at::kDouble),
                             by_the_paper(start(at::kDouble).detach(), 50, 0.01, 0.1), 1e-4, 1e-5))
        << kernels::name_of(path);
    seen.push_back(p.detach());
  }
  for (const at::Tensor& one : seen) EXPECT_TRUE(at::equal(one, seen.front()));
}

TEST(Yogi, AStateBeginsWithItsInitialValue) {
  for (const Path path : paths()) {
    const at::Tensor p = start();
    Yogi yogi({p}, YogiOptions(0.01), {.path = path});
    p.mutable_grad() = torch::zeros({37});
    yogi.step();
    EXPECT_TRUE(at::equal(yogi.state_tensors().at("0.exp_avg_sq"), torch::full({37}, 1e-6F)));
    EXPECT_TRUE(at::equal(p, start()));
  }
}

// Saved in the middle by torch::save, and as tensors; a schedule moves lr and the first beta.
TEST(Yogi, IsSavedResumedAndScheduled) {
  const auto steps = [](Yogi& yogi, const at::Tensor& p, int from, int to) {
    for (int t = from; t < to; ++t) {
      yogi.param_groups()[0].options().set_lr(0.01 / (t + 1));
      lr::set_momentum(yogi.param_groups()[0].options(), 0.9 - 0.01 * t);
      p.mutable_grad() = gradient(t).to(p.dtype());
      yogi.step();
    }
  };
  for (const auto dtype : {at::kFloat, at::kBFloat16, at::kDouble}) {
    const at::Tensor whole = start(dtype), part = start(dtype);
    Yogi unbroken({whole}), first({part});
    steps(unbroken, whole, 0, 8);
    steps(first, part, 0, 4);
    std::stringstream file;
    torch::save(first, file);
    const at::Tensor second = part.detach().clone().requires_grad_(),
                     third = part.detach().clone().requires_grad_();
    Yogi read({second}), loaded({third});
    torch::load(read, file);
    loaded.load_state_tensors(first.state_tensors());
    steps(read, second, 4, 8);
    steps(loaded, third, 4, 8);
    EXPECT_TRUE(at::equal(second, whole)) << dtype;
    EXPECT_TRUE(at::equal(third, whole)) << dtype;
    EXPECT_FALSE(at::equal(part, whole)) << dtype;
  }
}

TEST(Yogi, TrainsANetwork) {
  torch::manual_seed(0);
  torch::nn::Sequential net(torch::nn::Linear(2, 16), torch::nn::Tanh(), torch::nn::Linear(16, 1));
  const at::Tensor x = torch::rand({64, 2}) * 2 - 1,
                   y = (x.select(1, 0) * x.select(1, 1)).view({64, 1});
  Yogi yogi(net->parameters(), YogiOptions(0.02));
  double before = 0, after = 0;
  for (int step = 0; step < 300; ++step) {
    yogi.zero_grad();
    const at::Tensor loss = torch::mse_loss(net->forward(x), y);
    loss.backward();
    yogi.step();
    (step == 0 ? before : after) = loss.item<double>();
  }
  EXPECT_LT(after, before / 10);
  EXPECT_EQ(yogi.bytes_per_parameter(), 4 + 4 + 24);
}

}  // namespace
}  // namespace demi::optim
