#include "demi/distributed/deadline.h"

#include <gtest/gtest.h>

#include <chrono>

namespace demi::distributed {
namespace {

using Clock = std::chrono::steady_clock;

const auto kNever = [] { return false; };

TEST(Poll, AsksUntilItIsOver) {
  int asked = 0;
  const auto third = [&] { return ++asked == 3; };
  EXPECT_EQ(poll(third, kNever, Clock::now() + std::chrono::hours(1)), WaitEnd::kOver);
  EXPECT_EQ(asked, 3);
}

TEST(Poll, EndsIfARankIsLost) {
  int asked = 0;
  const auto third = [&] { return ++asked == 3; };
  EXPECT_EQ(poll(kNever, third, Clock::now() + std::chrono::hours(1)), WaitEnd::kRankLost);
  EXPECT_EQ(asked, 3);
}

TEST(Poll, EndsAtTheDeadline) {
  const auto deadline = Clock::now() + std::chrono::milliseconds(20);
  EXPECT_EQ(poll(kNever, kNever, deadline), WaitEnd::kTooLong);
  EXPECT_GE(Clock::now(), deadline);
}

TEST(Poll, WhatIsOverIsOverWhoeverDied) {
  const auto always = [] { return true; };
  EXPECT_EQ(poll(always, always, Clock::now() - std::chrono::hours(1)), WaitEnd::kOver);
  EXPECT_EQ(poll(kNever, always, Clock::now() - std::chrono::hours(1)), WaitEnd::kRankLost);
}

}  // namespace
}  // namespace demi::distributed
