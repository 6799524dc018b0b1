#pragma once

#include "demi/core/state_dict.h"
#include "demi/scaler/scale_rule.h"

namespace demi::scaler {

/// What a scaler's state dict holds: the state of the rule, and of the options the growth factor,
/// the backoff factor and the growth interval.
struct SavedState {
  ScaleState state;
  GradScalerOptions options;
};

/// The dict has PyTorch's names, and "_hysteresis_tracker" and "_amax_history.N" if in use.
StateDict to_dict(const SavedState& saved);

/// What the dict says; `present` gives what it does not hold. Throws UsageError for a dict that is
/// empty or incomplete, and for a number out of its range.
SavedState from_dict(const StateDict& dict, SavedState present);

}  // namespace demi::scaler
