#pragma once

#include <atomic>
#include <cstdint>
#include <thread>

namespace demi::profile {

/// Is told of each block of the CPU's memory, by any thread.
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

/// Nobody listens from here on, and no thread is telling the sink anything any more.
inline void close_cpu_sink() {
  cpu_sink = nullptr;
  while (cpu_sink_calls != 0) std::this_thread::yield();
}

}  // namespace demi::profile
