#include "demi/profile/scoped_timer.h"

#include <exception>

#include "demi/profile/memory.h"
#include "demi/profile/phase_timer.h"

namespace demi::profile {

void quiet_down(c10::Device device) {
  synchronize(device);
  release_unused_memory(device);
  reset_peak_memory(device);
  reset_peak_resident_memory();
}

ScopedTimer::ScopedTimer(c10::Device device) : device_(device) {
  quiet_down(device_);
  start_ = std::chrono::steady_clock::now();
}

ScopedTimer::ScopedTimer(c10::Device device, Measured& into) : ScopedTimer(device) {
  into_ = &into;
}

ScopedTimer::~ScopedTimer() {
  try {
    stop();
  } catch (const std::exception&) {
    // A failed device throws at the next call; a destructor must not throw.
  }
}

const Measured& ScopedTimer::stop() {
  if (!running_) return measured_;
  running_ = false;
  synchronize(device_);
  measured_.seconds =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count();
  measured_.peak_bytes = memory_use(device_).peak_bytes;
  measured_.peak_resident_bytes = resident_memory().peak_bytes;
  if (into_) *into_ = measured_;
  return measured_;
}

}  // namespace demi::profile
