#pragma once

#include <c10/core/Device.h>

#include <chrono>
#include <cstdint>

#include "demi/core/export.h"

namespace demi::profile {

/// The measurement of a ScopedTimer.
struct Measured {
  double seconds = 0;                    // wall-clock time, including the device's work
  std::int64_t peak_bytes = 0;           // of tensors; 0 on a CPU without count_cpu_memory
  std::int64_t peak_resident_bytes = 0;  // of the process, if its peak can be reset
};

/// Prepares a measurement: waits for the device, returns unused memory and resets the peaks.
DEMI_API void quiet_down(c10::Device device);

/// Time and memory of a part of a program, as the AMP recipe measures it. The constructor calls
/// quiet_down() and then starts the clock; the end of the scope waits for the device and then reads
/// time and peaks.
///
///     demi::profile::Measured measured;
///     {
///       const demi::profile::ScopedTimer timer(device, measured);
///       train();
///     }
///
/// Peaks belong to the device and the process, so only one timer may run at a time. The first steps
/// after the start allocate memory again: to measure a few milliseconds, warm up first and use a
/// timer of your own.
class DEMI_API ScopedTimer {
 public:
  explicit ScopedTimer(c10::Device device);
  /// stop(), or the end of the scope, fills `into`, unless the device failed meanwhile. `into` must
  /// outlive the timer.
  ScopedTimer(c10::Device device, Measured& into);
  ~ScopedTimer();
  ScopedTimer(const ScopedTimer&) = delete;
  ScopedTimer& operator=(const ScopedTimer&) = delete;

  /// Ends the measurement before the scope does. A second call returns the same. Throws the error
  /// that the device reports.
  const Measured& stop();

 private:
  c10::Device device_;
  Measured* into_ = nullptr;
  Measured measured_;
  bool running_ = true;
  std::chrono::steady_clock::time_point start_;
};

}  // namespace demi::profile
