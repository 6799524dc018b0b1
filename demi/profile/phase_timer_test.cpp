#include "demi/profile/phase_timer.h"

#include <ATen/record_function.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <thread>
#include <vector>

namespace demi::profile {
namespace {

using std::chrono::milliseconds;

// The sleeps are what is measured: at least so long on any machine, and the bound from above is
// measured, too.
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

std::vector<std::string>& seen_ranges() {
  static std::vector<std::string> seen;
  return seen;
}

// As a profiler of LibTorch sees them: each begins where the one before has ended.
TEST(PhaseTimer, PhasesAreRangesWhileAProfilerRecords) {
  const auto begin = [](const at::RecordFunction& range) -> std::unique_ptr<at::ObserverContext> {
    seen_ranges().emplace_back(range.name());
    return nullptr;
  };
  const auto end = [](const at::RecordFunction& range, at::ObserverContext*) {
    seen_ranges().push_back(std::string("end of ") + range.name());
  };
  PhaseTimer timer{c10::Device(c10::kCPU)};
  timer.enter(Phase::data);
  const at::CallbackHandle handle = at::addThreadLocalCallback(
      at::RecordFunctionCallback(begin, end).scopes({at::RecordScope::USER_SCOPE}));
  timer.enter(Phase::forward);
  timer.enter(Phase::unscale);
  timer.pause();
  timer.pause();
  at::removeCallback(handle);
  timer.enter(Phase::step);
  timer.pause();
  EXPECT_EQ(seen_ranges(), (std::vector<std::string>{"demi::forward", "end of demi::forward",
                                                     "demi::unscale", "end of demi::unscale"}));
}

}  // namespace
}  // namespace demi::profile
