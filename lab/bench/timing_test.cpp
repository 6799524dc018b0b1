#include "lab/bench/timing.h"

#include <gtest/gtest.h>

#include <string>
#include <thread>

namespace demi::bench {
namespace {

TEST(Times, LeastMedianMostAndSpreadInAnyOrder) {
  Times times;
  for (const double time : {4.0, 2.0, 3.0}) times.add(time);
  EXPECT_EQ(times.least(), 2);
  EXPECT_EQ(times.median(), 3);
  EXPECT_EQ(times.most(), 4);
  EXPECT_DOUBLE_EQ(times.spread(), 0.5);
  times.add(8);
  EXPECT_EQ(times.median(), 3.5) << "of an even number the mean of the middle ones";
}

TEST(Timing, ContendersTakeTurnsAfterAWarmUp) {
  std::string order;
  const auto times = take_turns(c10::kCPU, /*warmup=*/1, /*rounds=*/2,
                                {{.work = [&] { order += 'a'; }},
                                 {.work = [&] { order += 'b'; }, .before = [&] { order += '.'; }}});
  EXPECT_EQ(order, "a.ba.ba.b");
  ASSERT_EQ(times.size(), 2u);
  EXPECT_GE(times[0].least(), 0);
}

TEST(Timing, WaitsForTheWork) {
  // The pause is measured, and takes at least so long on any machine.
  const auto pause = [] { std::this_thread::sleep_for(std::chrono::milliseconds(5)); };
  EXPECT_GE(milliseconds(c10::kCPU, pause), 5);
  EXPECT_GE(nanoseconds(1, pause), 5e6);
}

}  // namespace
}  // namespace demi::bench
