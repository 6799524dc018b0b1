// Regions that outlive what else their thread keeps. Each runs in a process of its own, since it is
// the end of one that counts.
#include <ATen/autocast_mode.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <optional>
#include <thread>

#include "demi/autocast/autocast.h"

namespace demi {
namespace {

class Lifetime : public testing::Test {
 protected:
  void SetUp() override { GTEST_FLAG_SET(death_test_style, "threadsafe"); }
};

bool multiplies_in(torch::Dtype dtype) {
  static auto* layer = new torch::nn::Linear(4, 4);
  return (*layer)->forward(torch::ones({2, 4})).scalar_type() == dtype;
}

// Left while the process ends, after its thread's state and after LibTorch's cache of casts.
[[noreturn]] void exit_in_static_regions() {
  static std::optional<Autocast> outer, inner;
  OpPolicy policy;
  policy.set("softmax", OpCategory::fp32);
  outer.emplace(torch::kCPU, AutocastOptions{.dtype = torch::kBFloat16, .policy = policy});
  inner.emplace(torch::kCPU, torch::kHalf);
  std::exit(multiplies_in(torch::kHalf) ? 0 : 1);
}

TEST_F(Lifetime, OfARegionMayBeThatOfTheProcess) {
  EXPECT_EXIT(exit_in_static_regions(), testing::ExitedWithCode(0), "");
}

[[noreturn]] void exit_after_a_thread_with_its_own_region() {
  bool is_right = false;
  std::thread([&] {
    static thread_local std::optional<Autocast> region;  // made before the thread's first region
    { const Autocast first(torch::kCPU, torch::kHalf); }
    region.emplace(torch::kCPU, torch::kBFloat16);
    is_right = multiplies_in(torch::kBFloat16);
  }).join();
  { const Autocast next(torch::kCPU, torch::kHalf); }
  std::exit(is_right && multiplies_in(torch::kFloat) ? 0 : 1);
}

TEST_F(Lifetime, OfARegionMayBeThatOfItsThread) {
  EXPECT_EXIT(exit_after_a_thread_with_its_own_region(), testing::ExitedWithCode(0), "");
}

[[noreturn]] void exit_after_the_thread_of_an_open_region() {
  static std::optional<Autocast> region;
  std::thread([] { region.emplace(torch::kCPU, torch::kBFloat16); }).join();
  region.reset();
  std::exit(multiplies_in(torch::kFloat) ? 0 : 1);
}

TEST_F(Lifetime, OfARegionEndsWithItsThread) {
  EXPECT_EXIT(exit_after_the_thread_of_an_open_region(), testing::ExitedWithCode(0), "");
}

}  // namespace
}  // namespace demi
