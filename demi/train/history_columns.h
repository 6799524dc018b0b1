#pragma once

#include "demi/checkpoint/checkpoint.h"
#include "demi/core/export.h"
#include "demi/train/history.h"

namespace demi::train {

/// Writes steps and epochs as columns, one tensor a field: "history/steps.loss", fp64, (steps). A
/// missing accuracy or scale is NaN. Writes the last `most` steps; 0: all.
DEMI_API void write_columns(const History& history, checkpoint::NamedTensors& to, int64_t most = 0);

/// Reads them back. Throws UsageError for columns that are missing or differ in length.
DEMI_API void read_columns(const checkpoint::NamedTensors& from, History& history);

}  // namespace demi::train
