#include "demi/profile/core_share.h"

#include <sched.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <fstream>
#include <string>

#include "demi/core/control_group.h"

namespace demi::profile {
namespace {

double seconds_of(clockid_t clock) {
  timespec time{};
  clock_gettime(clock, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

// "cpu user nice system idle iowait irq softirq steal guest guest_nice", in ticks.
struct MachineTime {
  double busy = 0, stolen = 0;
};
MachineTime machine_time() {
  std::ifstream file("/proc/stat");
  std::string name;
  double user = 0, nice = 0, system = 0, idle = 0, iowait = 0, irq = 0, softirq = 0, steal = 0;
  if (!(file >> name >> user >> nice >> system >> idle >> iowait >> irq >> softirq >> steal))
    return {};
  const double tick = static_cast<double>(sysconf(_SC_CLK_TCK));
  return {(user + nice + system + irq + softirq) / tick, steal / tick};
}

struct Threads {
  std::unordered_map<int, int64_t> queued_ns;
  int cores = 0;  // that at least one of them may run on
};

// A thread may end meanwhile; it is passed over. Files of zeros: the kernel does not count.
Threads threads() {
  Threads result;
  cpu_set_t together, one;
  CPU_ZERO(&together);
  std::error_code none;
  for (std::filesystem::directory_iterator task("/proc/self/task", none), end; !none && task != end;
       task.increment(none)) {
    const std::string name = task->path().filename().string();
    int id = 0;
    std::from_chars(name.data(), name.data() + name.size(), id);
    if (sched_getaffinity(id, sizeof one, &one) == 0) CPU_OR(&together, &together, &one);
    std::ifstream file(task->path() / "schedstat");
    int64_t ran = 0, queued = 0, slices = 0;
    if (file >> ran >> queued >> slices && slices > 0) result.queued_ns[id] = queued;
  }
  result.cores = CPU_COUNT(&together);
  return result;
}

}  // namespace

CoreReadings& CoreReadings::operator+=(const CoreReadings& more) {
  const bool first = wall_seconds == 0;
  wall_seconds += more.wall_seconds;
  cpu_seconds += more.cpu_seconds;
  if (first) {
    queued_seconds = more.queued_seconds;
  } else if (queued_seconds && more.queued_seconds) {
    *queued_seconds += *more.queued_seconds;
  } else {
    queued_seconds.reset();
  }
  stolen_seconds += more.stolen_seconds;
  cores = more.cores;
  involuntary_switches += more.involuntary_switches;
  return *this;
}

std::optional<double> cores_share(const CoreReadings& r) {
  if (!r.queued_seconds || r.cpu_seconds <= 0) return std::nullopt;
  const double of_wanted = r.cpu_seconds / (r.cpu_seconds + *r.queued_seconds + r.stolen_seconds);
  const double there = r.wall_seconds * r.cores;
  const double of_all = there > 0 ? r.cpu_seconds / there : 0;
  return std::min(1.0, std::max(of_wanted, of_all));
}

CoreMeter::Counters CoreMeter::now() {
  Counters result;
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  const MachineTime machine = machine_time();
  Threads all = threads();
  result.process.wall_seconds = seconds_of(CLOCK_MONOTONIC);
  result.process.cpu_seconds = seconds_of(CLOCK_PROCESS_CPUTIME_ID);
  result.process.involuntary_switches = usage.ru_nivcsw;
  const double allowed = std::max(all.cores, 1);
  result.process.cores = std::min(allowed, control_group_limits().cores.value_or(allowed));
  result.queued_ns = std::move(all.queued_ns);
  result.stolen_seconds = machine.stolen;
  result.busy_seconds = machine.busy;
  return result;
}

void CoreMeter::begin() { before_ = now(); }

void CoreMeter::end() {
  const Counters after = now();
  CoreReadings piece;
  piece.wall_seconds = after.process.wall_seconds - before_.process.wall_seconds;
  piece.cpu_seconds = after.process.cpu_seconds - before_.process.cpu_seconds;
  piece.involuntary_switches =
      after.process.involuntary_switches - before_.process.involuntary_switches;
  piece.cores = after.process.cores;
  if (!after.queued_ns.empty()) {
    int64_t queued = 0;
    for (const auto& [thread, nanoseconds] : after.queued_ns) {
      const auto known = before_.queued_ns.find(thread);
      queued += nanoseconds - (known == before_.queued_ns.end() ? 0 : known->second);
    }
    piece.queued_seconds = 1e-9 * static_cast<double>(std::max<int64_t>(queued, 0));
  }
  // The stolen time that counts for this process: as large a part of it as the process's work is of
  // the machine's.
  const double busy = after.busy_seconds - before_.busy_seconds;
  const double part = busy > 0 ? std::min(1.0, piece.cpu_seconds / busy) : 0;
  piece.stolen_seconds = part * std::max(0.0, after.stolen_seconds - before_.stolen_seconds);
  sum_ += piece;
}

}  // namespace demi::profile
