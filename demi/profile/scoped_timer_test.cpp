#include "demi/profile/scoped_timer.h"

#include <gtest/gtest.h>
#include <torch/types.h>

#include <thread>

#include "demi/profile/memory.h"

namespace demi::profile {
namespace {

using std::chrono::milliseconds;

const c10::Device kCpu(c10::kCPU);

TEST(ScopedTimer, FillsTheResultAtTheEndOfTheScope) {
  Measured measured;
  const auto start = std::chrono::steady_clock::now();
  {
    const ScopedTimer timer(kCpu, measured);
    std::this_thread::sleep_for(milliseconds(20));  // what is measured
    EXPECT_EQ(measured.seconds, 0) << "not before";
  }
  const std::chrono::duration<double> outside = std::chrono::steady_clock::now() - start;
  EXPECT_GE(measured.seconds, 0.02);
  EXPECT_LE(measured.seconds, outside.count());
  EXPECT_GT(measured.peak_resident_bytes, 1 << 20);
}

TEST(ScopedTimer, ForgetsThePeakOfWhatWasBefore) {
  count_cpu_memory();
  const std::int64_t in_use = memory_use(kCpu).current_bytes;
  { const at::Tensor before = torch::empty({1 << 20}); }
  ScopedTimer timer(kCpu);
  { const at::Tensor during = torch::empty({1000}); }
  EXPECT_EQ(timer.stop().peak_bytes, in_use + 4000);
}

TEST(ScopedTimer, StopEndsItOnceAndForAll) {
  Measured into;
  double seconds = 0;
  {
    ScopedTimer timer(kCpu, into);
    seconds = timer.stop().seconds;
    std::this_thread::sleep_for(milliseconds(5));  // which a second measurement would count
    EXPECT_EQ(timer.stop().seconds, seconds);
  }
  EXPECT_EQ(into.seconds, seconds) << "the end of the scope does not measure again";
}

}  // namespace
}  // namespace demi::profile
