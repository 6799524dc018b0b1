#pragma once

#include <atomic>
#include <cstdint>
#include <thread>

namespace demi::profile {

/// Receives each block of the CPU's memory that is made or freed, from any thread.
class AllocationSink {
 public:
  virtual ~AllocationSink() = default;
  /// Throws if there must not be so many bytes more.
  virtual void made(const void* address, std::int64_t bytes) = 0;
  virtual void freed(const void* address) noexcept = 0;
};

/// The sink for the CPU's memory; null: nobody listens.
inline std::atomic<AllocationSink*> cpu_sink{nullptr};
/// Calls of that sink in progress, by any thread.
inline std::atomic<int> cpu_sink_calls{0};

/// Calls tell(sink) if somebody listens. Costs one read if nobody does.
template <class Tell>
void tell_cpu_sink(const Tell& tell) {
  if (!cpu_sink.load(std::memory_order_relaxed)) return;
  struct Call {
    Call() { ++cpu_sink_calls; }
    ~Call() { --cpu_sink_calls; }
  } const call;
  if (AllocationSink* sink = cpu_sink) tell(*sink);
}

/// Removes the sink, and returns once no thread calls it any more.
inline void close_cpu_sink() {
  cpu_sink = nullptr;
  while (cpu_sink_calls != 0) std::this_thread::yield();
}

}  // namespace demi::profile
