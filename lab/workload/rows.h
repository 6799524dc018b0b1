#pragma once

#include "lab/workload/reading.h"

namespace demi::workload {

/// Made rows: random targets, or (`linear`) the sum of the features with random weights.
Loaders random_rows(const Reading& reading, bool linear);

}  // namespace demi::workload
