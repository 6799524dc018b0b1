#pragma once

#include "demi/loop/job.h"

namespace demi::loop {

/// Throws UsageError with `where` if a Step has begun a step on one of the job's optimizers or
/// models and has not finished it: gradients are no part of a checkpoint.
void require_no_open_step(const Job& job, const char* where);

}  // namespace demi::loop
