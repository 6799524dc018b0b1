#include "demi/profile/allocation_log.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <atomic>
#include <optional>
#include <thread>
#include <vector>

#include "demi/profile/memory.h"

namespace demi::profile {
namespace {

const c10::Device kHost(c10::kCPU);

TEST(AllocationLog, HasEachBlockWithItsBytesAndItsTimes) {
  count_cpu_memory();
  const auto before = torch::empty({10}, torch::kFloat);
  const AllocationLog log(kHost);
  EXPECT_EQ(log.now(), -1);
  const auto kept = torch::empty({1000}, torch::kFloat);
  torch::empty({500}, torch::kBFloat16);
  const auto all = log.allocations();
  ASSERT_EQ(all.size(), 2U);
  EXPECT_EQ(all[0].address, kept.data_ptr());
  EXPECT_EQ(all[0].bytes, 4000);
  EXPECT_EQ(all[0].made, 0);
  EXPECT_EQ(all[0].freed, Allocation::kNever);
  EXPECT_EQ(all[1].bytes, 1000);
  EXPECT_EQ(all[1].made, 1);
  EXPECT_EQ(all[1].freed, 2);
  EXPECT_TRUE(all[1].is_alive(1));
  EXPECT_FALSE(all[1].is_alive(2));
  EXPECT_EQ(log.now(), 2);
}

TEST(AllocationLog, WhatIsOlderOrYoungerIsNotInIt) {
  count_cpu_memory();
  auto old = torch::empty({10});
  {
    const AllocationLog log(kHost);
    old = torch::Tensor();
    EXPECT_TRUE(log.allocations().empty());
  }
  const AllocationLog log(kHost);
  EXPECT_TRUE(log.allocations().empty());
}

TEST(AllocationLog, HasTheBlocksOfOtherThreads) {
  count_cpu_memory();
  const AllocationLog log(kHost);
  std::thread([] { torch::empty({25}); }).join();
  ASSERT_EQ(log.allocations().size(), 1U);
  EXPECT_EQ(log.allocations()[0].bytes, 100);
}

TEST(AllocationLog, EndsWhileOtherThreadsFree) {
  count_cpu_memory();
  std::atomic<bool> ends = false;
  std::vector<std::thread> threads;
  for (int i = 0; i < 3; ++i)
    threads.emplace_back([&] {
      while (!ends) torch::empty({25});
    });
  for (int i = 0; i < 2'000; ++i) std::optional<AllocationLog>(kHost).reset();
  ends = true;
  for (std::thread& thread : threads) thread.join();
}

TEST(AllocationLog, RefusesWhatIsBeyondItsLimit) {
  count_cpu_memory();
  const auto before = memory_use(kHost).current_bytes;
  const AllocationLog log(kHost, 4000);
  const auto fits = torch::empty({600});
  EXPECT_THROW(torch::empty({401}), c10::OutOfMemoryError);
  EXPECT_EQ(memory_use(kHost).current_bytes, before + 2400) << "what was refused is not in use";
  torch::empty({400});
  torch::empty({400});
}

}  // namespace
}  // namespace demi::profile
