#pragma once

#include <optional>

#include "demi/loop/observer.h"
#include "demi/monitor/origin.h"
#include "demi/monitor/repeated_batch.h"

namespace demi::monitor {

/// Repeats the batch under observation, from `before`, and names the op that made the first Inf or
/// NaN in its loss; else in its gradients; else in what forward computes and no longer needs. None
/// if nothing is Inf or NaN this time, apart from -Inf of masks. The caller makes the trials.
std::optional<Origin> find_origin(const loop::StepView& view, RepeatGuard& run,
                                  const Surroundings& before, loop::RepeatOptions how = {});

}  // namespace demi::monitor
