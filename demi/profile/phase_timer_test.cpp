#include "demi/profile/phase_timer.h"

#include <gtest/gtest.h>

#include <thread>

namespace demi::profile {
namespace {

using std::chrono::milliseconds;

TEST(PhaseTimer, TimeGoesToThePhaseEnteredLastAndNowhereWhilePaused) {
  PhaseTimer timer{c10::Device(c10::kCPU)};
  const auto start = std::chrono::steady_clock::now();
  timer.enter(Phase::data);
  std::this_thread::sleep_for(milliseconds(5));
  timer.enter(Phase::forward);
  std::this_thread::sleep_for(milliseconds(10));
  timer.pause();
  const PhaseTimer::Seconds until_pause = std::chrono::steady_clock::now() - start;
  std::this_thread::sleep_for(milliseconds(5));
  EXPECT_GE(timer.spent(Phase::data), milliseconds(5));
  EXPECT_GE(timer.spent(Phase::forward), milliseconds(10));
  EXPECT_EQ(timer.spent(Phase::backward).count(), 0);
  EXPECT_LE(timer.total(), until_pause);
  timer.reset();
  EXPECT_EQ(timer.total().count(), 0);
}

}  // namespace
}  // namespace demi::profile
