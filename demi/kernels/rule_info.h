#pragma once

#include <cstdint>
#include <optional>
#include <span>

#include "demi/core/export.h"
#include "demi/kernels/rules/state.h"
#include "demi/kernels/step_table.h"

namespace demi::kernels {

/// A rule's description, for code that moves states without knowing formulas.
struct RuleInfo {
  std::span<const State> states;
  bool has_trust;  // a third pass
  /// Of a rule of matrices: the rule of its third pass, after products.
  std::optional<UpdateRule> applied_by;
};

DEMI_API RuleInfo info_of(UpdateRule rule);

/// Whether a group with these numbers keeps the state; bit k is info_of(rule).states[k].
DEMI_API std::uint32_t states_kept(UpdateRule rule, const Group& group);
/// Whether the third pass of a rule of matrices reads the gradient of a group with these numbers.
DEMI_API bool reads_gradient_again(UpdateRule rule, const Group& group);
/// The number that the state begins with in a group with these numbers.
DEMI_API float initial_of(UpdateRule rule, const State& state, const Group& group);
/// The arrays among them that may be coded.
DEMI_API std::uint32_t states_coded(UpdateRule rule, const Group& group);

}  // namespace demi::kernels
