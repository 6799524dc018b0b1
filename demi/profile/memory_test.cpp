#include "demi/profile/memory.h"

#include <gtest/gtest.h>
#include <torch/torch.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>

namespace demi::profile {
namespace {

TEST(Memory, CountsTheBytesOfCpuTensors) {
  count_cpu_memory();
  const c10::Device cpu(c10::kCPU);
  const auto before = memory_use(cpu).current_bytes;
  reset_peak_memory(cpu);
  {
    const auto a = torch::empty({1000}, torch::kFloat);
    const auto b = torch::empty({1000}, torch::kBFloat16);
    EXPECT_EQ(memory_use(cpu).current_bytes - before, 4000 + 2000);
  }
  EXPECT_EQ(memory_use(cpu).current_bytes, before);
  EXPECT_EQ(memory_use(cpu).peak_bytes - before, 6000);
  reset_peak_memory(cpu);
  EXPECT_EQ(memory_use(cpu).peak_bytes, before);
}

TEST(Memory, BlocksAreAlignedAndUsableByResizeAndRawAllocation) {
  count_cpu_memory();
  auto t = torch::arange(10);
  t.resize_({100000});
  EXPECT_EQ(t[9].item<int64_t>(), 9) << "resize copies through the allocator";
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(t.data_ptr()) % 64, 0u);
  void* raw = c10::GetAllocator(c10::kCPU)->raw_allocate(128);
  c10::GetAllocator(c10::kCPU)->raw_deallocate(raw);
  EXPECT_EQ(torch::empty({0}).numel(), 0);
}

// Two that take turns, each with 4,000 bytes that it keeps and 8,000 for a moment, beside 2,000
// that are everybody's.
TEST(Memory, OfOneThatTakesTurnsIsCountedAlone) {
  count_cpu_memory();
  const c10::Device cpu(c10::kCPU);
  const auto before = memory_use(cpu).current_bytes;
  const auto shared = torch::empty({500});
  const auto base = memory_use(cpu).current_bytes;
  TurnMemory first(cpu, base), second(cpu, base);
  std::vector<torch::Tensor> kept;
  for (int turn = 0; turn < 2; ++turn) {
    for (TurnMemory* one : {&first, &second}) {
      one->begin();
      if (turn == 0) kept.push_back(torch::empty({1000}));
      torch::empty({2000});
      one->end();
    }
  }
  for (const TurnMemory& one : {first, second}) {
    EXPECT_EQ(one.use().peak_bytes - before, 2000 + 4000 + 8000);
    EXPECT_EQ(one.use().current_bytes - before, 2000 + 4000);
  }
}

TEST(Memory, ResidentPeakFollowsAReset) {
  const bool can_reset = reset_peak_resident_memory();
  const auto now = resident_memory();
  EXPECT_GT(now.current_bytes, 1 << 20);
  if (!can_reset) GTEST_SKIP() << "/proc/self/clear_refs cannot be written here";
  const auto t = torch::ones({64 << 20}, torch::kUInt8);
  EXPECT_GE(resident_memory().peak_bytes, now.current_bytes + (60 << 20));
}

// Linux's own figure, which another program may change between two looks.
TEST(FreeMemory, IsAtMostWhatTheSystemHas) {
  const std::int64_t free = free_memory(c10::kCPU);
  EXPECT_GT(free, 0);
  const std::int64_t all =
      static_cast<std::int64_t>(sysconf(_SC_PHYS_PAGES)) * sysconf(_SC_PAGESIZE);
  EXPECT_LT(free, all);
  const at::Tensor held = at::ones({std::min<std::int64_t>(free / 8, 1 << 28)}, at::kByte);
  EXPECT_LT(free_memory(c10::kCPU), all - held.numel()) << "what is held is not free";
}

}  // namespace
}  // namespace demi::profile
