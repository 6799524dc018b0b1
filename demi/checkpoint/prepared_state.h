#pragma once

#include <cstddef>
#include <functional>
#include <string>
#include <vector>

#include "demi/checkpoint/training_state.h"

namespace demi::checkpoint {

// The functions that messages name.
inline constexpr auto kCapture = "checkpoint.capture";
inline constexpr auto kRestore = "checkpoint.restore";

/// A checkpoint that was checked against objects and found to fit. Calling the functions puts it
/// into them; until then nothing is changed. The checkpoint must be alive and unchanged then.
struct PreparedState {
  /// All objects that prepare() was given.
  std::function<void()> objects;
  /// States of random generators. Empty function: none.
  std::function<void()> random;
};

/// Throws as restore().
PreparedState prepare(const Checkpoint& checkpoint, const TrainingObjects& objects);

/// Checks the saved states of schedules, and loads them: to be called before
/// PreparedState::objects, which loads the learning rates of the optimizers' groups.
void load_schedules(const Checkpoint& checkpoint,
                    const std::vector<optim::lr::Scheduler*>& schedules);

/// "schedule", "schedule.1", ...: the part of `numbers` that holds a schedule, and the same of an
/// optimizer.
std::string part_name(const char* kind, std::size_t index);

}  // namespace demi::checkpoint
