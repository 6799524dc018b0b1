#pragma once

#include <stdlib.h>
#include <time.h>

#include <algorithm>
#include <chrono>
#include <thread>

namespace demi {

/// The factor, for tests with a limit in wall time, by which a program takes longer now than on a
/// machine without other work; 1 or more. Measured by 20 ms of work, whose processor time is its
/// wall time on such a machine, and by the mean load of the last minute.
inline double load_factor() {
  const auto processor_seconds = [] {
    timespec time{};
    ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
    return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
  };
  const auto began = std::chrono::steady_clock::now();
  const double before = processor_seconds();
  double work = 0;
  while (work < 0.02) work = processor_seconds() - before;
  const std::chrono::duration<double> wall = std::chrono::steady_clock::now() - began;
  double of_last_minute = 0;
  if (::getloadavg(&of_last_minute, 1) != 1) of_last_minute = 0;
  const double cores = std::max(1U, std::thread::hardware_concurrency());
  return std::max({1.0, wall.count() / work, of_last_minute / cores});
}

/// The limit on this machine, for tests, of a program that needs `quiet` on one without other work.
inline std::chrono::milliseconds under_load(std::chrono::milliseconds quiet) {
  return std::chrono::duration_cast<std::chrono::milliseconds>(quiet * load_factor());
}

}  // namespace demi
