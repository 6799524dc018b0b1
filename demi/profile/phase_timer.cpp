#include "demi/profile/phase_timer.h"

#include <ATen/DeviceAccelerator.h>

#include <numeric>

namespace demi::profile {

void synchronize(c10::Device device) {
  if (!device.is_cpu()) at::accelerator::synchronizeDevice(device.has_index() ? device.index() : 0);
}

PhaseTimer::PhaseTimer(c10::Device device, bool synchronise)
    : device_(device), synchronise_(synchronise) {}

void PhaseTimer::pause() {
  if (!running_) return;
  if (synchronise_) synchronize(device_);
  spent_[static_cast<std::size_t>(phase_)] += Clock::now() - since_;
  running_ = false;
}

void PhaseTimer::enter(Phase phase) {
  pause();
  phase_ = phase;
  since_ = Clock::now();
  running_ = true;
}

PhaseTimer::Seconds PhaseTimer::total() const {
  return std::accumulate(spent_.begin(), spent_.end(), Seconds{});
}

void PhaseTimer::reset() {
  running_ = false;
  spent_.fill(Seconds{});
}

}  // namespace demi::profile
