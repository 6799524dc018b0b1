#pragma once

#include <c10/core/Device.h>

#include <vector>

#include "lab/recipes/run_spec.h"

namespace demi::cli {

/// Notes on stderr for runs whose precision does not pay on the device. `runs` empty: the device's
/// mixed precision.
void note_slow_precisions(const std::vector<recipes::RunSpec>& runs, c10::Device device);

}  // namespace demi::cli
