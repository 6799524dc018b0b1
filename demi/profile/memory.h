#pragma once

#include <c10/core/Device.h>

#include <cstdint>

#include "demi/core/export.h"

namespace demi::profile {

/// Bytes of tensors on one device, as requested from LibTorch's allocator, on CPU and CUDA alike.
/// The memory that CUDA's caching allocator reserves is larger.
struct MemoryUse {
  std::int64_t current_bytes = 0;  // alive now
  std::int64_t peak_bytes = 0;     // since the last reset_peak_memory
  /// Bytes that CUDA's caching allocator holds, for tensors and for later ones. 0 elsewhere.
  std::int64_t reserved_bytes = 0;
};

/// Puts a counting allocator in front of LibTorch's CPU allocator for the rest of the process.
/// Without this call memory_use(CPU) is 0. Costs two atomic additions an allocation. Tensors that
/// were made before are not counted: call it once, early.
DEMI_API void count_cpu_memory();

/// Memory of tensors on the device. Does not synchronise.
DEMI_API MemoryUse memory_use(c10::Device device);

/// Sets the peak to the memory that is in use now.
DEMI_API void reset_peak_memory(c10::Device device);

/// Memory of one of several pieces of work that take turns on a device. Memory that the others hold
/// meanwhile is not counted; memory that was in use before any of them (`shared_bytes`) counts for
/// each.
class DEMI_API TurnMemory {
 public:
  TurnMemory(c10::Device device, std::int64_t shared_bytes)
      : device_(device), use_{shared_bytes, shared_bytes} {}

  /// Resets the device's peak.
  void begin();
  /// Ends the turn and adds its memory.
  void end();
  /// The memory so far, of all turns together.
  MemoryUse use() const { return use_; }

 private:
  c10::Device device_;
  MemoryUse use_;
  std::int64_t before_ = 0;  // in use on the device when the turn began
};

/// Bytes that could be allocated now. On a CPU: as many as Linux could give without swapping
/// (MemAvailable), within the limits of control groups and process. Elsewhere: as many as the
/// device's allocator reports. Throws DeviceError for a device whose allocator reports none.
DEMI_API std::int64_t free_memory(c10::Device device);

/// Returns unused memory: blocks of the caching allocator to the device, of the heap to the
/// operating system.
DEMI_API void release_unused_memory(c10::Device device);

/// Resident memory of this process, now and at most since the last reset: Linux's VmRSS and VmHWM.
DEMI_API MemoryUse resident_memory();
/// Sets the peak of resident_memory() to its present value, by Linux's /proc/self/clear_refs. False
/// if that is not permitted: the peak is then that of the whole process.
DEMI_API bool reset_peak_resident_memory();

}  // namespace demi::profile
