#pragma once

#include <cstddef>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "demi/checkpoint/training_state.h"

namespace demi::checkpoint {

// The functions that messages name.
inline constexpr auto kCapture = "checkpoint.capture";
inline constexpr auto kRestore = "checkpoint.restore";

using Numbers = std::map<std::string, StateDict>;  // as Checkpoint::numbers

/// A checkpoint that was checked against objects and found to fit. Calling the functions, each at
/// most once, puts it into them; until then the objects are not changed. They let go of each tensor
/// once it is copied.
struct PreparedState {
  /// All objects that prepare() was given.
  std::function<void()> objects;
  /// States of random generators. Empty function: none.
  std::function<void()> random;
};

/// Takes the tensors of the objects out of the checkpoint. Throws as restore().
PreparedState prepare(Checkpoint& checkpoint, const loop::Job& job);

/// capture() of a Trainer's run, which adds the gradients of a step that is not finished.
Checkpoint capture_within_step(const loop::Job& job);

/// Checks the saved states of schedules, and loads them: to be called before
/// PreparedState::objects, which loads the learning rates of the optimizers' groups.
void load_schedules(const Numbers& numbers, const std::vector<optim::lr::Scheduler*>& schedules);

/// Takes the tensors whose names begin with `prefix` out of `all`, under the rest of their names.
NamedTensors take_part(NamedTensors& all, std::string_view prefix);

/// "schedule", "schedule.1", ...: the part of `numbers` that holds a schedule, and the same of an
/// optimizer.
std::string part_name(const char* kind, std::size_t index);

}  // namespace demi::checkpoint
