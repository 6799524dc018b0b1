#pragma once

#include <c10/core/Device.h>

#include <array>
#include <chrono>
#include <memory>
#include <string_view>

#include "demi/core/export.h"

namespace demi::profile {

/// The parts of a training step. `unscale` is unscale_ and clipping; a step without them unscales
/// within `step`.
enum class Phase { data, forward, loss, backward, unscale, step, other };
/// The phases' names, in the order of Phase.
inline constexpr std::array<std::string_view, 7> kPhaseNames{
    "data", "forward", "loss", "backward", "unscale", "step", "other"};
/// The beginning of a phase's name in a profiler's trace: "demi::forward".
inline constexpr std::string_view kPhaseRange = "demi::";

/// Wall-clock seconds by phase: `enter` ends the phase before. On a CPU the phases are exact. On a
/// device that works asynchronously they are the host's time, unless `synchronise` is true: then
/// each `enter` waits for the device, which makes the step slower and the phases exact. While a
/// profiler of LibTorch records, phases are ranges in its trace. One thread.
class DEMI_API PhaseTimer {
 public:
  /// Times as they are reported.
  using Seconds = std::chrono::duration<double>;

  explicit PhaseTimer(c10::Device device, bool synchronise = false);
  /// Begins a phase, which ends the one before.
  void enter(Phase phase);
  /// Ends the current phase. Time until the next `enter` counts for none.
  void pause();
  /// The time of a phase so far.
  Seconds spent(Phase phase) const { return spent_[static_cast<std::size_t>(phase)]; }
  /// Sum over all phases.
  Seconds total() const;
  /// Ends the current phase and sets all to 0.
  void reset();

 private:
  using Clock = std::chrono::steady_clock;
  Clock::time_point end(Clock::time_point now);

  c10::Device device_;
  bool synchronise_;
  bool running_ = false;
  Phase phase_ = Phase::other;
  Clock::time_point since_{};
  std::shared_ptr<void> range_;  // in a profiler's trace; null while there is none
  std::array<Seconds, kPhaseNames.size()> spent_{};
};

/// Waits for all work that was queued on the device. Returns at once for a CPU.
DEMI_API void synchronize(c10::Device device);

}  // namespace demi::profile
