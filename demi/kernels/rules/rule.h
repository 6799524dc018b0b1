#pragma once

#include <array>
#include <cstdint>

#include "demi/kernels/formulas.h"
#include "demi/kernels/rules/state.h"
#include "demi/kernels/step_table.h"

// What every rule's file includes. Internal linkage, as formulas.h.
namespace demi::kernels {
namespace {

/// One tensor at one of its steps, for the numbers that a rule derives from its group.
struct At {
  double rate;             // the learning rate
  std::int64_t step;       // 1 is the first
  float* scalar;           // the rule's state of that form; null if it has none
  double rate_factor = 1;  // TensorEntry::rate_factor
};

/// What a rule does with StepTable::direction.
enum class Direction : std::uint8_t { none, written, read };

namespace rules {

/// What a rule has unless it says otherwise. A rule adds update(): one element of pass 2.
struct Base {
  /// At most three arrays.
  static constexpr std::array<State, 0> kStates{};
  /// The step of a tensor is scaled by a trust ratio: update() moves no parameter, direction() is
  /// what pass 2 takes the norm of and pass 3 moves the parameter by.
  static constexpr bool kTrust = false;
  /// written: update() moves no parameter, and leaves the tensor's direction in
  /// Elements::direction, which products then make orthogonal. read: what moves the parameter by
  /// it, in a launch of its own.
  static constexpr Direction kDirection = Direction::none;
  /// Bit m: update() reads and writes moment[m].
  static constexpr std::uint32_t kTouched = 7;
  /// update() reads the gradient with one of these flags alone. 0: always.
  static constexpr std::uint32_t kGradientIf = 0;

  /// The number that a state begins with.
  static float initial(const State& state, const Group&) { return state.initial; }
  /// Flags besides those that every group sets (group_coefficients).
  static DEMI_HOST_DEVICE std::uint32_t flags(const Group&) { return 0; }
  /// Changes the numbers that every group sets, and adds its own. FP64, rounded once.
  static DEMI_HOST_DEVICE void coefficients(Coefficients&, const Group&, const At&) {}
};

}  // namespace rules
}  // namespace
}  // namespace demi::kernels
