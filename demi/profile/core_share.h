#pragma once

#include <cstdint>
#include <optional>
#include <unordered_map>

#include "demi/core/export.h"

namespace demi::profile {

/// The readings that the operating system counted for this process over a time.
struct CoreReadings {
  double wall_seconds = 0;
  double cpu_seconds = 0;  // of all threads, including those that spin
  /// Sum over threads of the time in which they were ready to run and had no core. None if the
  /// kernel does not count it (Linux's /proc/self/task/TID/schedstat).
  std::optional<double> queued_seconds;
  /// Time that a hypervisor took from this process's cores for other machines.
  double stolen_seconds = 0;
  /// Cores that the process may use: its affinity, limited by its control group's quota.
  double cores = 1;
  /// Times that a thread had to leave its core before it was done.
  int64_t involuntary_switches = 0;

  DEMI_API CoreReadings& operator+=(const CoreReadings& more);
};

/// The share of the cores that the process asked for and got, above 0, at most 1:
///
///     cpu / (cpu + queued + stolen), or cpu / (wall x cores) if that is more
///
/// A thread that sleeps (for data, for a device, for other threads without spinning) asks for no
/// core and does not count. A thread that spins counts as running, and as queued while another
/// program has its core, so the share does not depend on OMP_WAIT_POLICY. The second term is for
/// processes with more threads than cores: they queue behind each other, although the process has
/// all cores. Memory bandwidth, the other hyperthread of a core and the clock are not measured.
///
/// None if the kernel does not count how long threads queued, or if nothing ran.
DEMI_API std::optional<double> cores_share(const CoreReadings& readings);

/// Reads the counters before and after pieces of work and adds up the differences. The time between
/// `end` and the next `begin` does not count. A thread that ended during a piece of work counts
/// with its processor time only.
class DEMI_API CoreMeter {
 public:
  void begin();
  void end();
  const CoreReadings& readings() const { return sum_; }

 private:
  struct Counters {
    CoreReadings process;
    std::unordered_map<int, int64_t> queued_ns;   // by thread
    double stolen_seconds = 0, busy_seconds = 0;  // of the whole machine, all cores
  };
  static Counters now();

  Counters before_;
  CoreReadings sum_;
};

}  // namespace demi::profile
