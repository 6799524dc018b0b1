#include "demi/profile/memory.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <functional>

#include "demi/autocast/autocast.h"
#include "demi/recompute/recompute.h"

// Bytes by the counting allocator: what is held between forward and backward, and what is left.
namespace demi {
namespace {

constexpr int64_t kTensor = 1 << 20;  // bytes

at::Tensor tanh_eight_times(at::Tensor x) {
  for (int i = 0; i < 8; ++i) x = x.tanh();
  return x;
}

struct Bytes {
  int64_t held = 0, peak = 0, left = 0;
};

Bytes bytes_of(const std::function<at::Tensor(const at::Tensor&)>& forward) {
  profile::count_cpu_memory();
  const auto now = [] { return profile::memory_use(torch::kCPU).current_bytes; };
  auto x = torch::randn({kTensor / 4}).requires_grad_();
  x.mutable_grad() = torch::zeros_like(x);
  const auto before = now();
  profile::reset_peak_memory(torch::kCPU);
  Bytes bytes;
  {
    const auto loss = forward(x).sum();
    bytes.held = now() - before;
    loss.backward();
  }
  bytes.peak = profile::memory_use(torch::kCPU).peak_bytes - before;
  bytes.left = now() - before;
  return bytes;
}

at::Tensor twice(const at::Tensor& x) {
  return recompute(tanh_eight_times, recompute(tanh_eight_times, x));
}

TEST(RecomputeMemory, HoldsTheInputsAlone) {
  const auto plain =
      bytes_of([](const at::Tensor& x) { return tanh_eight_times(tanh_eight_times(x)); });
  EXPECT_GE(plain.held, 16 * kTensor);
  const auto bytes = bytes_of(twice);
  EXPECT_LE(bytes.held, 1.1 * kTensor) << "what the second call reads";
  EXPECT_LE(bytes.peak, 12 * kTensor) << "what one call makes, and three more";
  EXPECT_GT(bytes.peak, 8 * kTensor);
  EXPECT_LT(bytes.left, kTensor / 100);
}

TEST(RecomputeMemory, HoldsTheOuterInputsAloneWhereCallsNest) {
  const auto bytes =
      bytes_of([](const at::Tensor& x) { return recompute(twice, recompute(twice, x)); });
  EXPECT_LE(bytes.held, 1.1 * kTensor);
  EXPECT_LE(bytes.peak, 13 * kTensor);
  EXPECT_LT(bytes.left, kTensor / 100);
}

TEST(RecomputeMemory, HoldsNothingAfterABackwardThatRetainsTheGraph) {
  profile::count_cpu_memory();
  auto x = torch::randn({kTensor / 4}).requires_grad_();
  const auto now = [] { return profile::memory_use(torch::kCPU).current_bytes; };
  const auto before = now();
  const auto loss = twice(x).sum();
  for (int i = 0; i < 2; ++i) {
    torch::autograd::grad({loss}, {x}, {}, /*retain_graph=*/true);
    EXPECT_LE(now() - before, 1.1 * kTensor);
  }
}

// When backward is in the middle of the function, what it has been through is gone.
TEST(RecomputeMemory, ReleasesEachTensorOnceItIsRead) {
  profile::count_cpu_memory();
  auto x = torch::randn({kTensor / 4}).requires_grad_();
  const auto now = [] { return profile::memory_use(torch::kCPU).current_bytes; };
  int64_t before = 0, held = -1;
  const auto y = recompute(
      [&](const at::Tensor& t) {
        const auto middle = tanh_eight_times(t);
        if (!is_recomputing())
          middle.register_hook([&](const at::Tensor&) { held = now() - before; });
        return tanh_eight_times(middle);
      },
      x);
  const auto loss = y.sum();
  before = now();
  loss.backward();
  EXPECT_GE(held, 8 * kTensor);
  EXPECT_LE(held, 11 * kTensor);
}

TEST(RecomputeMemory, HoldsNothingWithoutGradients) {
  const at::NoGradGuard no_grad;
  profile::count_cpu_memory();
  const auto x = torch::randn({kTensor / 4});
  const auto before = profile::memory_use(torch::kCPU).current_bytes;
  const auto y = twice(x);
  EXPECT_LE(profile::memory_use(torch::kCPU).current_bytes - before, 1.1 * kTensor);
}

TEST(RecomputeMemory, HoldsNothingOfAFunctionThatThrew) {
  profile::count_cpu_memory();
  auto x = torch::randn({kTensor / 4}).requires_grad_();
  const auto before = profile::memory_use(torch::kCPU).current_bytes;
  EXPECT_THROW(recompute(
                   [](const at::Tensor& t) -> at::Tensor {
                     const auto y = tanh_eight_times(t);
                     throw std::runtime_error("of the user's own");
                   },
                   x),
               std::runtime_error);
  EXPECT_LT(profile::memory_use(torch::kCPU).current_bytes - before, kTensor / 100);
}

}  // namespace
}  // namespace demi
