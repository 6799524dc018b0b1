#include "demi/profile/phase_timer.h"

#include <ATen/DeviceAccelerator.h>
#include <ATen/record_function.h>

#include <numeric>
#include <string>
#include <utility>

namespace demi::profile {
namespace {

// Null while no profiler asks for ranges, which costs two reads of counters.
std::shared_ptr<void> range_of(Phase phase) {
  auto callbacks = at::getStepCallbacksUnlessEmpty(at::RecordScope::USER_SCOPE);
  if (!callbacks) return nullptr;
  auto range = std::make_shared<at::RecordFunction>(std::move(*callbacks));
  const std::string name =
      std::string(kPhaseRange) + std::string(kPhaseNames[static_cast<std::size_t>(phase)]);
  if (range->isActive()) range->before(name);
  return range;
}

}  // namespace

void synchronize(c10::Device device) {
  if (device.is_cpu()) return;
  at::accelerator::synchronizeDevice(device.has_index() ? device.index()
                                                        : at::accelerator::getDeviceIndex());
}

PhaseTimer::PhaseTimer(c10::Device device, bool synchronise)
    : device_(device), synchronise_(synchronise) {}

void PhaseTimer::pause() {
  if (!running_) return;
  if (synchronise_) synchronize(device_);
  range_.reset();
  since_ = end(Clock::now());
  running_ = false;
}

void PhaseTimer::enter(Phase phase) {
  if (running_ && synchronise_) synchronize(device_);
  range_.reset();
  since_ = end(Clock::now());
  phase_ = phase;
  range_ = range_of(phase);
  running_ = true;
}

// A phase begins where the one before ends: one look at the clock for both.
PhaseTimer::Clock::time_point PhaseTimer::end(Clock::time_point now) {
  if (running_) spent_[static_cast<std::size_t>(phase_)] += now - since_;
  return now;
}

PhaseTimer::Seconds PhaseTimer::total() const {
  return std::accumulate(spent_.begin(), spent_.end(), Seconds{});
}

void PhaseTimer::reset() {
  running_ = false;
  range_.reset();
  spent_.fill(Seconds{});
}

}  // namespace demi::profile
