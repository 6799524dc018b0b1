#pragma once

#include "lab/workload/reading.h"

namespace demi::workload {

/// Random rows, whose targets are random or (`linear`) the features' sum with random weights.
Loaders random_rows(const Reading& reading, bool linear);

}  // namespace demi::workload
