#include "demi/loop/job_schedules.h"

#include <c10/util/StringUtil.h>

#include <algorithm>

#include "demi/core/error.h"

namespace demi::loop {

std::vector<JobSchedule> schedules_of(const Job& job, const char* where) {
  std::vector<JobSchedule> all;
  for (optim::lr::Scheduler* schedule : job.schedules) {
    if (!schedule) continue;
    const auto found = std::ranges::find(job.optimizers, &schedule->optimizer());
    if (found == job.optimizers.end())
      throw UsageError({.where = where,
                        .what = "a schedule is of an optimizer that is none of the job's",
                        .seen = c10::str("not among ", job.optimizers.size()),
                        .accepted = "schedules of Job::optimizers"});
    const auto number = static_cast<std::size_t>(found - job.optimizers.begin());
    if (std::ranges::any_of(all, [&](const auto& one) { return one.optimizer == number; }))
      throw UsageError({.where = where,
                        .what = "an optimizer has two schedules, of which the last sets its rates",
                        .seen = c10::str("optimizer ", number),
                        .accepted = "one for each optimizer, or none",
                        .advice =
                            "make one rule of them: lr::sequential({first, second}, {steps}), "
                            "or a product in a Schedule of your own"});
    all.push_back({number, schedule});
  }
  return all;
}

}  // namespace demi::loop
