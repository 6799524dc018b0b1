#include "lab/report/progress.h"

#include <gtest/gtest.h>

#include <cmath>
#include <sstream>

namespace demi::report {
namespace {

using Seconds = std::chrono::duration<double>;

ProgressState full() {
  return {.run = "bf16",
          .epoch = 2,
          .epochs = 3,
          .step = 143,
          .steps = 235,
          .loss = 0.3120,
          .accuracy = 0.8891,
          .correct = 32541,
          .examples = 36600,
          .learning_rate = 2.8e-3,
          .loss_scale = 65536,
          .items_per_second = 3214,
          .memory_bytes = 1.2e9};
}

std::string line(std::size_t width, bool utf8 = true) {
  return Progress::line(full(), Seconds(41), width, utf8, false, true);
}

TEST(ProgressLine, HoldsEverythingWhereThereIsRoom) {
  EXPECT_EQ(Progress::line(full(), Seconds(41), 0, true, false, false),
            "bf16  epoch 2/3   60 %  loss 0.3120  accuracy 88.91 %  (32,541/36,600)  lr 2.80e-03  "
            "scale 65536  3,214 images/s  1.20 GB  0:41 left");
}

TEST(ProgressLine, NeverExceedsTheWidthAndGivesUpTheLeastFirst) {
  for (std::size_t width = 1; width <= 220; ++width) EXPECT_LE(display_width(line(width)), width);
  EXPECT_EQ(line(40).find("scale"), std::string::npos);
  EXPECT_EQ(line(40), "bf16  2/3   60 %  loss 0.3120  0:41 left");
  EXPECT_NE(line(200).find("━"), std::string::npos);
  for (const char c : line(200, false)) EXPECT_LT(static_cast<unsigned char>(c), 0x80);
}

TEST(ProgressLine, ALossThatIsNanIsSaid) {
  ProgressState state = full();
  state.loss = std::nan("");
  EXPECT_NE(Progress::line(state, {}, 0, true, false, false).find("loss nan"), std::string::npos);
}

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

TEST(TimeLeft, FollowsTheRateAndLeavesPausesOut) {
  TimeLeft time(Seconds(20));
  EXPECT_FALSE(time.left(10));
  time.at(0, Seconds(0));
  for (int step = 1; step <= 10; ++step) time.at(step, Seconds(step * 2.0));
  EXPECT_NEAR(time.left(100)->count(), 200, 1e-9);
  time.pause();  // evaluation
  time.at(10, Seconds(500));
  for (int step = 11; step <= 20; ++step) time.at(step, Seconds(500 + (step - 10) * 2.0));
  EXPECT_NEAR(time.left(100)->count(), 200, 1e-9);
  for (int step = 21; step <= 120; ++step)
    time.at(step, Seconds(520 + (step - 20) * 4.0));  // half as quick now
  EXPECT_NEAR(time.left(100)->count(), 400, 1);
}

// The trainer reads the device every ten steps and then tells of all ten: a step takes 3 s here,
// and the line is drawn at the first of each ten.
TEST(TimeLeft, StepsThatAreToldOfAtOnceShareTheirWait) {
  TimeLeft time(Seconds(20));
  time.at(0, Seconds(0));
  for (int read = 1; read <= 5; ++read) {
    for (int i = 1; i <= 10; ++i) {
      time.at((read - 1) * 10 + i, Seconds(read * 30 + i * 0.001));
      if (read > 1 || i == 10) {
        EXPECT_NEAR(time.left(100)->count(), 300, 1) << read << " " << i;
      }
    }
  }
}

// A slow first step is not the pattern of those after it.
TEST(TimeLeft, AFirstStepThatWaitsIsForgotten) {
  TimeLeft time(Seconds(20));
  time.at(0, Seconds(0));
  for (int step = 1; step <= 2000; ++step) time.at(step, Seconds(10 + step * 0.1));
  EXPECT_NEAR(time.left(100)->count(), 10, 0.1);
}

}  // namespace
}  // namespace demi::report
