#pragma once

#include <c10/core/Device.h>
#include <c10/util/ThreadLocalDebugInfo.h>

#include <cstdint>
#include <limits>
#include <memory>
#include <vector>

#include "demi/core/export.h"

namespace demi::profile {

/// A block of memory for tensors. Times count the log's events: each block that is made or freed is
/// one.
struct Allocation {
  const void* address = nullptr;  // of its first byte
  std::int64_t bytes = 0;         // as requested
  std::int64_t made = 0;          // the event that made it
  std::int64_t freed = kNever;    // the event that freed it; kNever: it is alive
  /// `freed` of a block that is alive.
  static constexpr std::int64_t kNever = std::numeric_limits<std::int64_t>::max();
  /// Whether it is there after event `time`.
  bool is_alive(std::int64_t time) const { return made <= time && time < freed; }
};

/// Records the blocks that LibTorch allocates on a device while this object lives: on a CPU those
/// of all threads (after count_cpu_memory()), elsewhere those of this thread and of the backward
/// passes that it starts. One log at a time for each device type. Does not synchronise.
class DEMI_API AllocationLog {
 public:
  /// `limit` of a log that holds every event.
  static constexpr std::int64_t kNoLimit = std::numeric_limits<std::int64_t>::max();

  /// `limit_bytes`: an allocation on a CPU by which the log's living blocks would exceed it throws
  /// c10::OutOfMemoryError, before the memory is touched.
  explicit AllocationLog(c10::Device device, std::int64_t limit_bytes = kNoLimit);
  ~AllocationLog();
  AllocationLog(const AllocationLog&) = delete;
  AllocationLog& operator=(const AllocationLog&) = delete;

  /// The time of the last event; -1 before the first.
  std::int64_t now() const;

  /// All blocks so far, in the order in which they were made.
  std::vector<Allocation> allocations() const;

 private:
  class Sink;
  std::shared_ptr<Sink> sink_;
  std::unique_ptr<c10::DebugInfoGuard> guard_;  // of a device other than the CPU
};

}  // namespace demi::profile
