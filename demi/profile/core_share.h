#pragma once

#include <cstdint>
#include <optional>
#include <unordered_map>

#include "demi/core/export.h"

namespace demi::profile {

/// What the operating system counted of this process over some time.
struct CoreReadings {
  double wall_seconds = 0;
  double cpu_seconds = 0;  // of all threads, those that spin included
  /// Sum over threads of the time in which they were ready to run and had no core; none where the
  /// kernel does not say (Linux's /proc/self/task/TID/schedstat).
  std::optional<double> queued_seconds;
  double stolen_seconds = 0;  // that a hypervisor took from this process's cores for other machines
  double cores = 1;  // that the process may run on: affinity, and its control group's quota
  int64_t involuntary_switches = 0;  // a thread had to leave its core before it was done

  DEMI_API CoreReadings& operator+=(const CoreReadings& more);
};

/// Share, above 0 up to 1, of the cores that the process could use and got:
///
///     cpu / (cpu + queued + stolen), or cpu / (wall x cores) where that is more
///
/// A thread that sleeps (for data, for a device, for other threads without spinning) wants no core
/// and is not in it, so that the share does not depend on OMP_WAIT_POLICY: a thread that spins
/// counts as running, and as queued while another program has its core. The second term is for more
/// threads than cores: they stand in each other's way, and the process still has all there is. What
/// goes by other ways than a core is not seen: memory bandwidth, the other hyperthread, the clock.
///
/// None where the kernel does not say how long threads queued, or nothing ran.
DEMI_API std::optional<double> cores_share(const CoreReadings& readings);

/// Reads the counters around pieces of work and adds up; what passes between `end` and the next
/// `begin` does not count. Threads that ended in a piece of work count with their processor time
/// only.
class DEMI_API CoreMeter {
 public:
  void begin();
  void end();
  const CoreReadings& readings() const { return sum_; }

 private:
  struct Counters {
    CoreReadings process;
    std::unordered_map<int, int64_t> queued_ns;   // by thread
    double stolen_seconds = 0, busy_seconds = 0;  // of the whole machine
  };
  static Counters now();

  Counters before_;
  CoreReadings sum_;
};

}  // namespace demi::profile
