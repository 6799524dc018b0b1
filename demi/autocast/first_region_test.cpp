// The first region of a process registers the kernels. Several threads may enter theirs at once.
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <atomic>
#include <barrier>
#include <thread>
#include <vector>

#include "demi/autocast/autocast.h"

namespace demi {
namespace {

// LibTorch's kernel casts a weight by an op that autograd records; demi's passes the weight's own
// edge on.
bool demis_kernel_ran(const torch::Tensor& product) {
  for (const auto& edge : product.grad_fn()->next_edges())
    if (edge.function && edge.function->name() == "ToCopyBackward0") return false;
  return true;
}

[[noreturn]] void enter_at_once() {
  constexpr int kThreads = 4, kProducts = 200;
  std::barrier start(kThreads);
  std::atomic<int> by_libtorch = 0;
  std::vector<std::thread> threads;
  for (int i = 0; i < kThreads; ++i)
    threads.emplace_back([&] {
      const auto x = torch::ones({2, 3}), weight = torch::ones({3, 4}, torch::requires_grad());
      start.arrive_and_wait();
      const Autocast region(torch::kCPU, torch::kBFloat16);
      for (int k = 0; k < kProducts; ++k)
        if (!demis_kernel_ran(torch::mm(x, weight))) ++by_libtorch;
    });
  for (auto& thread : threads) thread.join();
  std::exit(by_libtorch == 0 ? 0 : 1);
}

TEST(FirstRegion, OfSeveralThreadsAtOnce) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  constexpr int kProcesses = 8;
  for (int i = 0; i < kProcesses; ++i)
    EXPECT_EXIT(enter_at_once(), testing::ExitedWithCode(0), "") << i;
}

}  // namespace
}  // namespace demi
