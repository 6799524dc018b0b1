#include "demi/profile/allocation_log.h"

#include <c10/core/Allocator.h>
#include <c10/util/Exception.h>

#include <cstddef>
#include <mutex>
#include <unordered_map>

#include "demi/profile/allocation_sink.h"

namespace demi::profile {

// LibTorch's own allocators report to the second base, demi's of the CPU to the first.
class AllocationLog::Sink final : public AllocationSink, public c10::MemoryReportingInfoBase {
 public:
  Sink(c10::Device device, std::int64_t limit) : device_(device), limit_(limit) {}

  void made(const void* address, std::int64_t bytes) override {
    const std::lock_guard lock(mutex_);
    TORCH_CHECK_WITH(OutOfMemoryError, bytes <= limit_ - living_, "out of memory: ", bytes,
                     " bytes more than the ", living_, " in use are beyond the limit of ", limit_);
    living_ += bytes;
    place_[address] = all_.size();
    all_.push_back({.address = address, .bytes = bytes, .made = ++now_});
  }

  void freed(const void* address) noexcept override {
    const std::lock_guard lock(mutex_);
    const auto found = place_.find(address);
    if (found == place_.end()) return;  // from before the log
    Allocation& block = all_[found->second];
    block.freed = ++now_;
    living_ -= block.bytes;
    place_.erase(found);
  }

  void reportMemoryUsage(void* address, std::int64_t bytes, std::size_t, std::size_t,
                         c10::Device device) override {
    if (device.type() != device_.type() || device_.is_cpu()) return;
    bytes > 0 ? made(address, bytes) : freed(address);
  }
  void reportOutOfMemory(std::int64_t, std::size_t, std::size_t, c10::Device) override {}
  bool memoryProfilingEnabled() const override { return true; }

  std::int64_t now() const {
    const std::lock_guard lock(mutex_);
    return now_;
  }
  std::vector<Allocation> all() const {
    const std::lock_guard lock(mutex_);
    return all_;
  }

 private:
  mutable std::mutex mutex_;
  const c10::Device device_;
  const std::int64_t limit_;
  std::int64_t now_ = -1, living_ = 0;
  std::vector<Allocation> all_;
  std::unordered_map<const void*, std::size_t> place_;  // in all_, of the living
};

AllocationLog::AllocationLog(c10::Device device, std::int64_t limit_bytes)
    : sink_(std::make_shared<Sink>(device, device.is_cpu() ? limit_bytes : kNoLimit)) {
  if (device.is_cpu())
    cpu_sink = sink_.get();
  else
    guard_ = std::make_unique<c10::DebugInfoGuard>(c10::DebugInfoKind::PROFILER_STATE, sink_);
}

AllocationLog::~AllocationLog() {
  if (!guard_) close_cpu_sink();
}

std::int64_t AllocationLog::now() const { return sink_->now(); }

std::vector<Allocation> AllocationLog::allocations() const { return sink_->all(); }

}  // namespace demi::profile
