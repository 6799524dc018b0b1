#include "demi/profile/core_share.h"

#include <gtest/gtest.h>
#include <sched.h>
#include <signal.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <future>
#include <thread>
#include <vector>

namespace demi::profile {
namespace {

CoreReadings readings(double wall, double cpu, double queued, double cores) {
  CoreReadings r;
  r.wall_seconds = wall;
  r.cpu_seconds = cpu;
  r.queued_seconds = queued;
  r.cores = cores;
  return r;
}

// The formula by hand, over ten seconds on two cores.
TEST(CoresShare, IsWhatWasGotOfWhatWasWanted) {
  EXPECT_DOUBLE_EQ(*cores_share(readings(10, 20, 0, 2)), 1) << "two threads that spin, alone";
  EXPECT_DOUBLE_EQ(*cores_share(readings(10, 15, 5, 2)), 0.75) << "half a core went elsewhere";
  EXPECT_DOUBLE_EQ(*cores_share(readings(10, 12, 0, 2)), 1) << "threads that sleep want no core";
  EXPECT_DOUBLE_EQ(*cores_share(readings(10, 8, 2, 2)), 0.8) << "they sleep, and queue when awake";
  EXPECT_DOUBLE_EQ(*cores_share(readings(10, 1, 0, 2)), 1) << "nearly all of it waiting for data";
}

TEST(CoresShare, OwnThreadsInEachOthersWayAreNotLost) {
  EXPECT_DOUBLE_EQ(*cores_share(readings(10, 20, 40, 2)), 1) << "six threads on two cores";
  EXPECT_DOUBLE_EQ(*cores_share(readings(10, 14, 46, 2)), 0.7) << "six threads and another program";
  EXPECT_DOUBLE_EQ(*cores_share(readings(10, 15, 25, 1.5)), 1) << "all of a control group's quota";
}

TEST(CoresShare, WhatAHypervisorTookIsLost) {
  CoreReadings r = readings(10, 15, 0, 2);
  r.stolen_seconds = 5;
  EXPECT_DOUBLE_EQ(*cores_share(r), 0.75);
}

TEST(CoresShare, IsNoneWhereTheKernelDoesNotSayOrNothingRan) {
  CoreReadings r = readings(10, 20, 0, 2);
  r.queued_seconds.reset();
  EXPECT_FALSE(cores_share(r));
  EXPECT_FALSE(cores_share(readings(10, 0, 0, 2)));
  EXPECT_FALSE(cores_share({}));
}

TEST(CoreReadings, AddUpAndAreUnknownWhereOnePieceIs) {
  CoreReadings sum;
  sum += readings(10, 15, 5, 2);
  sum += readings(5, 5, 5, 2);
  EXPECT_DOUBLE_EQ(sum.wall_seconds, 15);
  EXPECT_DOUBLE_EQ(*cores_share(sum), 20.0 / 30);
  CoreReadings unknown = readings(1, 1, 0, 2);
  unknown.queued_seconds.reset();
  sum += unknown;
  EXPECT_FALSE(cores_share(sum));
}

void spin(double seconds) {
  timespec start{}, now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &start);
  do {
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  } while (static_cast<double>(now.tv_sec - start.tv_sec) +
               1e-9 * static_cast<double>(now.tv_nsec - start.tv_nsec) <
           seconds);
}

// Another process that takes a core for as long as it lives, ten seconds at most.
class Neighbour {
 public:
  Neighbour() : process_(fork()) {
    if (process_ != 0) return;
    alarm(10);
    while (true) __asm__ volatile("");
  }
  ~Neighbour() {
    kill(process_, SIGKILL);
    waitpid(process_, nullptr, 0);
  }
  Neighbour(const Neighbour&) = delete;
  Neighbour& operator=(const Neighbour&) = delete;

 private:
  pid_t process_;
};

cpu_set_t own_cores() {
  cpu_set_t cores;
  CPU_ZERO(&cores);
  sched_getaffinity(0, sizeof cores, &cores);
  return cores;
}

/// While it lives, this thread and those that it starts have one core.
class OnOneCore {
 public:
  OnOneCore() {
    int core = 0;
    while (!CPU_ISSET(core, &before_)) ++core;
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(core, &one);
    sched_setaffinity(0, sizeof one, &one);
  }
  ~OnOneCore() { sched_setaffinity(0, sizeof before_, &before_); }
  OnOneCore(const OnOneCore&) = delete;
  OnOneCore& operator=(const OnOneCore&) = delete;

 private:
  cpu_set_t before_ = own_cores();
};

TEST(CoreMeter, SeesAProgramThatHoldsTheCore) {
  CoreMeter meter;
  {
    const OnOneCore pinned;
    const Neighbour first, second, third;  // which inherit it
    meter.begin();
    spin(0.1);
    meter.end();
  }
  EXPECT_GT(meter.readings().cpu_seconds, 0);
  if (!meter.readings().queued_seconds) GTEST_SKIP() << "this kernel counts no queues";
  EXPECT_LT(*cores_share(meter.readings()), 0.9) << "a quarter, where the scheduler is fair";
  EXPECT_GT(meter.readings().involuntary_switches, 0);
}

TEST(CoreMeter, CountsTheCoresOfAllThreads) {
  const auto cores = [] {
    CoreMeter meter;
    meter.begin();
    meter.end();
    return meter.readings().cores;
  };
  std::promise<void> done;
  std::thread elsewhere([future = done.get_future()] { future.wait(); });
  const double all = cores();
  {
    const OnOneCore pinned;
    EXPECT_EQ(cores(), all);
  }
  done.set_value();
  elsewhere.join();
}

TEST(CoreMeter, CountsNothingBetweenTheEndAndTheNextBegin) {
  CoreMeter meter;
  for (int piece = 0; piece < 2; ++piece) {
    meter.begin();
    meter.end();
    spin(0.05);
  }
  EXPECT_LT(meter.readings().cpu_seconds, 0.05);
}

}  // namespace
}  // namespace demi::profile
