#include "lab/recipes/run.h"

#include "demi/core/error.h"
#include "demi/profile/memory.h"
#include "demi/profile/scoped_timer.h"
#include "lab/recipes/job.h"

namespace demi::recipes {

void check_parts(std::span<const settings::Resolved> runs, const workload::Workload& workload) {
  train::Network network;
  for (const settings::Resolved& resolved : runs) {
    const settings::Config& config = resolved.config;
    const settings::RunSpec& run = resolved.spec;
    if (!config.scaler && (run.loss_scale.kind == LossScale::Kind::fixed ||
                           run.loss_scale.kind == LossScale::Kind::dynamic ||
                           run.loss_scale.kind == LossScale::Kind::statistics))
      throw UsageError({.where = "--no-scaler",
                        .what = "a loss scale is asked for, and none",
                        .seen = run.label,
                        .advice = "leave out one of them"});
    if (config.fp32_part.empty() && config.op_policy.empty() && run.precision.recipe.empty())
      continue;
    const bool is_16_bit =
        !run.precision.is_mixed() && at::isReducedFloatingType(run.precision.weights);
    if (is_16_bit)
      throw UsageError({.where = config.fp32_part.empty() ? "--op-policy" : "--fp32-part",
                        .what = "this is about the autocast region, and " + run.label +
                                " computes everything in 16 bits",
                        .seen = config.fp32_part.empty() ? "a policy" : config.fp32_part,
                        .accepted = "a mixed precision (fp16, bf16), or one of FP32 or more"});
    if (!network.module) network = workload.make_network(static_cast<uint64_t>(config.seed));
    settings::apply_policy(resolved, network);
  }
}

RunResult run(const settings::Resolved& run, const workload::Workload& workload,
              const JobOptions& options) {
  profile::quiet_down(run.device);
  Job job(run, workload, options, profile::memory_use(run.device).current_bytes);
  job.advance();
  return job.finish();
}

}  // namespace demi::recipes
