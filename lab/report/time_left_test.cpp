#include <gtest/gtest.h>

#include "lab/report/progress.h"

namespace demi::report {
namespace {

TEST(TimeLeft, FollowsTheRateAndLeavesPausesOut) {
  TimeLeft time(TimeLeft::Seconds(20));
  EXPECT_FALSE(time.left(10));
  time.at(0, TimeLeft::Seconds(0));
  for (int step = 1; step <= 10; ++step) time.at(step, TimeLeft::Seconds(step * 2.0));
  EXPECT_NEAR(time.left(100)->count(), 200, 1e-9);
  time.pause();  // evaluation
  time.at(10, TimeLeft::Seconds(500));
  for (int step = 11; step <= 20; ++step) time.at(step, TimeLeft::Seconds(500 + (step - 10) * 2.0));
  EXPECT_NEAR(time.left(100)->count(), 200, 1e-9);
  for (int step = 21; step <= 120; ++step)
    time.at(step, TimeLeft::Seconds(520 + (step - 20) * 4.0));  // half as quick now
  EXPECT_NEAR(time.left(100)->count(), 400, 1);
}

// The trainer reads the device every ten steps and then reports all ten: a step takes 3 s here, and
// the line is drawn at the first of each ten.
TEST(TimeLeft, StepsThatAreToldOfAtOnceShareTheirWait) {
  TimeLeft time(TimeLeft::Seconds(20));
  time.at(0, TimeLeft::Seconds(0));
  for (int read = 1; read <= 5; ++read) {
    for (int i = 1; i <= 10; ++i) {
      time.at((read - 1) * 10 + i, TimeLeft::Seconds(read * 30 + i * 0.001));
      if (read > 1 || i == 10) {
        EXPECT_NEAR(time.left(100)->count(), 300, 1) << read << " " << i;
      }
    }
  }
}

// A slow first step is not the pattern of those after it.
TEST(TimeLeft, AFirstStepThatWaitsIsForgotten) {
  TimeLeft time(TimeLeft::Seconds(20));
  time.at(0, TimeLeft::Seconds(0));
  for (int step = 1; step <= 2000; ++step) time.at(step, TimeLeft::Seconds(10 + step * 0.1));
  EXPECT_NEAR(time.left(100)->count(), 10, 0.1);
}

}  // namespace
}  // namespace demi::report
