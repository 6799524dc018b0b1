#pragma once

#include <atomic>
#include <cstdint>

namespace demi::profile {

/// Is told of each block of the CPU's memory, by any thread.
class AllocationSink {
 public:
  virtual ~AllocationSink() = default;
  /// Throws if there must not be so many bytes more.
  virtual void made(const void* address, std::int64_t bytes) = 0;
  virtual void freed(const void* address) noexcept = 0;
};

/// Of the CPU; null: nobody listens. Set while no other thread allocates.
inline std::atomic<AllocationSink*> cpu_sink{nullptr};

}  // namespace demi::profile
