#pragma once

#include <c10/core/Device.h>

#include <chrono>
#include <cstdint>

#include "demi/core/export.h"

namespace demi::profile {

/// What a ScopedTimer saw.
struct Measured {
  double seconds = 0;                    // of wall-clock time, the device's work included
  std::int64_t peak_bytes = 0;           // of tensors; 0 on a CPU without count_cpu_memory
  std::int64_t peak_resident_bytes = 0;  // of the process, where its peak can be reset
};

/// Waits for the device, gives back unused blocks and resets the peaks: a quiet start for what is
/// to be measured.
DEMI_API void quiet_down(c10::Device device);

/// Time and memory of a part of a program, from a quiet start to a finished end, as the AMP recipe
/// measures it. The constructor quiets down and then starts the clock; the end of the scope waits
/// for the device and then reads both.
///
///     demi::profile::Measured measured;
///     {
///       const demi::profile::ScopedTimer timer(device, measured);
///       train();
///     }
///
/// Peaks belong to the device and the process, not to the timer: one at a time. The first steps
/// after the start allocate again, so a few milliseconds need a warm-up and a timer of their own.
class DEMI_API ScopedTimer {
 public:
  explicit ScopedTimer(c10::Device device);
  /// `into` is filled by stop() or the end of the scope; where the device failed meanwhile, not. It
  /// must outlive the timer.
  ScopedTimer(c10::Device device, Measured& into);
  ~ScopedTimer();
  ScopedTimer(const ScopedTimer&) = delete;
  ScopedTimer& operator=(const ScopedTimer&) = delete;

  /// Ends the measurement before the scope does. A second call gives the same. Throws what the
  /// device reports.
  const Measured& stop();

 private:
  c10::Device device_;
  Measured* into_ = nullptr;
  Measured measured_;
  bool running_ = true;
  std::chrono::steady_clock::time_point start_;
};

}  // namespace demi::profile
