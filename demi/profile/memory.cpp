#include "demi/profile/memory.h"

#include <ATen/Context.h>
#include <ATen/DeviceAccelerator.h>
#include <c10/core/Allocator.h>
#include <c10/core/CPUAllocator.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/impl/alloc_cpu.h>
#include <malloc.h>
#include <sys/resource.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <fstream>
#include <limits>
#include <string>

#include "demi/core/control_group.h"
#include "demi/core/error.h"
#include "demi/profile/allocation_sink.h"

namespace demi::profile {
namespace {

std::atomic<std::int64_t> cpu_current{0};
std::atomic<std::int64_t> cpu_peak{0};

void add(std::int64_t bytes) {
  const std::int64_t now = cpu_current.fetch_add(bytes, std::memory_order_relaxed) + bytes;
  std::int64_t peak = cpu_peak.load(std::memory_order_relaxed);
  while (now > peak && !cpu_peak.compare_exchange_weak(peak, now, std::memory_order_relaxed)) {
  }
}

// Each block carries its size in front, in a header as large as LibTorch's own alignment. Context
// and data pointer are the same address, as for LibTorch's own CPU blocks (raw_allocate and the
// mutation hook rely on it).
constexpr std::size_t kHeader = 64;

void release(void* data) {
  if (!data) return;
  char* block = static_cast<char*>(data) - kHeader;
  std::int64_t bytes = 0;
  std::memcpy(&bytes, block, sizeof bytes);
  cpu_current.fetch_sub(bytes, std::memory_order_relaxed);
  tell_cpu_sink([=](AllocationSink& sink) { sink.freed(data); });
  c10::free_cpu(block);
}

class CountingAllocator final : public c10::Allocator {
 public:
  c10::DataPtr allocate(std::size_t bytes) override {
    const c10::Device cpu(c10::DeviceType::CPU);
    if (bytes == 0) return {nullptr, nullptr, &release, cpu};
    char* block = static_cast<char*>(c10::alloc_cpu(bytes + kHeader));
    const auto counted = static_cast<std::int64_t>(bytes);
    std::memcpy(block, &counted, sizeof counted);
    add(counted);
    void* data = block + kHeader;
    c10::DataPtr held(data, data, &release, cpu);
    tell_cpu_sink([=](AllocationSink& sink) { sink.made(data, counted); });
    return held;
  }
  c10::DeleterFnPtr raw_deleter() const override { return &release; }
  void copy_data(void* dest, const void* src, std::size_t count) const override {
    default_copy_data(dest, src, count);
  }
};

// "VmHWM:     1234 kB" in /proc/self/status
std::int64_t status_bytes(const std::string& key) {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (line.starts_with(key + ":")) return std::stoll(line.substr(key.size() + 1)) * 1024;
  }
  return 0;
}

// Bytes that a limit of the process leaves (ulimit -v, -d); the greatest number without one.
std::int64_t left_by_limit(int resource, const char* used) {
  rlimit limit{};
  if (::getrlimit(static_cast<__rlimit_resource>(resource), &limit) != 0 ||
      limit.rlim_cur > static_cast<rlim_t>(std::numeric_limits<std::int64_t>::max()))
    return std::numeric_limits<std::int64_t>::max();
  return std::max<std::int64_t>(static_cast<std::int64_t>(limit.rlim_cur) - status_bytes(used), 0);
}

// Bytes that the operating system could give without swapping, within the control group and the
// limits of the process.
std::int64_t free_host_bytes() {
  std::ifstream stream("/proc/meminfo");
  std::int64_t free = 0;
  for (std::string name, unit; stream >> name;) {
    std::int64_t kilobytes = 0;
    stream >> kilobytes;
    std::getline(stream, unit);
    if (name == "MemAvailable:") free = kilobytes * 1024;
  }
  free = std::min(free, control_group_limits().free_bytes.value_or(free));
  return std::min({free, left_by_limit(RLIMIT_AS, "VmSize"), left_by_limit(RLIMIT_DATA, "VmData")});
}

}  // namespace

std::int64_t free_memory(c10::Device device) {
  if (device.is_cpu()) return free_host_bytes();
  at::globalContext().lazyInitDevice(device.type());
  auto* allocator = dynamic_cast<c10::DeviceAllocator*>(c10::GetAllocator(device.type()));
  if (!allocator)
    throw DeviceError({.where = "profile.free_memory",
                       .what = "this device does not tell how much memory is free",
                       .seen = device.str()});
  return static_cast<std::int64_t>(
      allocator->getMemoryInfo(device.has_index() ? device.index() : 0).first);
}

void count_cpu_memory() {
  static CountingAllocator allocator;  // LibTorch keeps the pointer for ever
  c10::SetCPUAllocator(&allocator, 1);
}

namespace {

/// CUDA's refuses every device before something has set CUDA up.
c10::DeviceAllocator& allocator_of(c10::Device device) {
  at::globalContext().lazyInitDevice(device.type());
  return *at::getDeviceAllocator(device.type());
}

}  // namespace

MemoryUse memory_use(c10::Device device) {
  if (device.is_cpu()) return {cpu_current.load(), cpu_peak.load()};
  const auto stats = allocator_of(device).getDeviceStats(device.has_index() ? device.index() : 0);
  constexpr auto kAll = static_cast<std::size_t>(c10::CachingAllocator::StatType::AGGREGATE);
  const auto& requested = stats.requested_bytes[kAll];
  return {requested.current, requested.peak, stats.reserved_bytes[kAll].current};
}

void reset_peak_memory(c10::Device device) {
  if (device.is_cpu()) {
    cpu_peak.store(cpu_current.load());
  } else {
    allocator_of(device).resetPeakStats(device.has_index() ? device.index() : 0);
  }
}

void TurnMemory::begin() {
  reset_peak_memory(device_);
  before_ = memory_use(device_).current_bytes;
}

void TurnMemory::end() {
  const MemoryUse now = memory_use(device_);
  use_.peak_bytes = std::max(use_.peak_bytes, use_.current_bytes + now.peak_bytes - before_);
  use_.current_bytes += now.current_bytes - before_;
}

void release_unused_memory(c10::Device device) {
  if (!device.is_cpu()) allocator_of(device).emptyCache();
  malloc_trim(0);
}

MemoryUse resident_memory() { return {status_bytes("VmRSS"), status_bytes("VmHWM")}; }

bool reset_peak_resident_memory() {
  std::ofstream clear("/proc/self/clear_refs");
  clear << "5" << std::flush;
  return clear.good();
}

}  // namespace demi::profile
