#pragma once

#include <c10/core/Device.h>

#include <cstdint>

#include "demi/core/export.h"

namespace demi::profile {

/// Bytes of tensors on one device, as LibTorch's allocator hands them out. On CUDA they are what
/// was requested, so that they can be set beside the CPU's; the caching allocator's reserve comes
/// on top.
struct MemoryUse {
  std::int64_t current_bytes = 0;
  std::int64_t peak_bytes = 0;  // since the last reset_peak_memory
};

/// Puts a counting allocator in front of LibTorch's CPU allocation for the rest of the process;
/// without it the numbers of memory_use(CPU) stay 0. Two atomic additions per allocation. Tensors
/// made before are not counted. Call it once, early.
DEMI_API void count_cpu_memory();

/// Does not synchronise.
DEMI_API MemoryUse memory_use(c10::Device device);

/// Forgets the peak: from now on it is at least what is in use now.
DEMI_API void reset_peak_memory(c10::Device device);

/// Memory of one of several pieces of work that take turns on a device: what the others hold
/// meanwhile is not counted. What was in use before any of them (`shared_bytes`) is everybody's.
class DEMI_API TurnMemory {
 public:
  TurnMemory(c10::Device device, std::int64_t shared_bytes)
      : device_(device), use_{shared_bytes, shared_bytes} {}

  /// Resets the device's peak.
  void begin();
  void end();
  MemoryUse use() const { return use_; }

 private:
  c10::Device device_;
  MemoryUse use_;
  std::int64_t before_ = 0;  // in use on the device when the turn began
};

/// Returns unused blocks: of the caching allocator to the device, of the heap to the operating
/// system.
DEMI_API void release_unused_memory(c10::Device device);

/// Resident set of this process, now and at its highest since the last reset; Linux's VmRSS and
/// VmHWM.
DEMI_API MemoryUse resident_memory();
/// Linux's /proc/self/clear_refs. Where that is not permitted the peak stays that of the whole
/// process; false says so.
DEMI_API bool reset_peak_resident_memory();

}  // namespace demi::profile
