#pragma once

#include <cstddef>
#include <vector>

#include "demi/loop/job.h"

namespace demi::loop {

/// A schedule, and the place of its optimizer in Job::optimizers.
struct JobSchedule {
  std::size_t optimizer;
  optim::lr::Scheduler* schedule;  // not null
};

/// The job's schedules in their order, without nulls. Throws UsageError with `where` for a schedule
/// of an optimizer that is none of the job's, and for two schedules of one optimizer.
std::vector<JobSchedule> schedules_of(const Job& job, const char* where);

}  // namespace demi::loop
