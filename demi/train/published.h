#pragma once

#include <vector>

#include "demi/core/export.h"
#include "demi/report/table.h"

namespace demi::train {

/// Published figures of mixed precision training, each table with its source in its notes
/// (docs/published_results.md shows the same).
DEMI_API std::vector<report::Table> published_tables();

}  // namespace demi::train
