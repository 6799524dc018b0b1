#include "lab/report/progress.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <sstream>

#include "lab/report/progress_testing.h"

namespace demi::report {
namespace {

using Seconds = std::chrono::duration<double>;

struct Fake {
  std::ostringstream out;
  double now = 0;
  ProgressOptions options() {
    return {.clock = [this] { return Seconds(now); }};
  }
};

TEST(Progress, WithoutATerminalWritesPlainLinesAtStartEndAndEveryTenSeconds) {
  Fake fake;
  Progress progress(fake.out, Terminal{}, fake.options());
  ProgressState state = full();
  progress.begin_epoch(state);
  for (int i = 0; i < 250; ++i) {
    fake.now += 0.1;  // 25 s
    progress.update(state);
  }
  progress.end_epoch(state);
  const std::string text = fake.out.str();
  EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 1 + 2 + 1);
  EXPECT_EQ(text.find_first_of("\r\x1b"), std::string::npos);
}

TEST(Progress, ATerminalIsRedrawnAtMostTenTimesASecondAndKeepsTheLastLine) {
  Fake fake;
  {
    Progress progress(fake.out, {.width = 80, .interactive = true, .utf8 = true}, fake.options());
    progress.begin_epoch(full());
    for (int i = 0; i < 1000; ++i) {
      fake.now += 0.001;
      progress.update(full());
    }
    const std::string text = fake.out.str();
    EXPECT_LE(std::count(text.begin(), text.end(), '\r'), 10);
    EXPECT_EQ(text.find('\n'), std::string::npos);
    progress.message("saved");
    EXPECT_TRUE(fake.out.str().ends_with("\r\x1b[Ksaved\n"));
    progress.end_epoch(full());
  }
  EXPECT_TRUE(fake.out.str().ends_with("\n"));  // the destructor takes no finished line away
}

// A step takes 2 s. Three epochs of 100 steps, of which 150 are taken.
TEST(Progress, TheTimeLeftIsUntilTheLastStep) {
  const auto left = [](std::int64_t last_step) {
    Fake fake;
    Progress progress(fake.out, Terminal{}, fake.options());
    ProgressState state{.epoch = 2, .epochs = 3, .steps = 100, .last_step = last_step};
    progress.begin_epoch(state);
    for (state.step = 1; state.step < 50; ++state.step) {
      fake.now += 2;
      progress.update(state);
    }
    fake.now += 2;
    progress.end_epoch(state);
    const std::string text = fake.out.str();
    return text.substr(text.rfind("  ") + 2);
  };
  EXPECT_EQ(left(0), "5:00 left\n");
  EXPECT_EQ(left(180), "1:00 left\n");
  EXPECT_EQ(left(150), "0:00 left\n");
  EXPECT_EQ(left(1000), "5:00 left\n") << "the epochs end before";
}

}  // namespace
}  // namespace demi::report
