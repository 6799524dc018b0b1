#include "lab/recipes/run.h"

#include <limits>

#include "demi/core/error.h"
#include "demi/profile/memory.h"
#include "demi/profile/scoped_timer.h"
#include "lab/recipes/job.h"
#include "lab/recipes/plan.h"

namespace demi::recipes {

void check_parts(const Config& config, std::span<const RunSpec> runs, const Workload& workload) {
  train::Network network;
  for (const RunSpec& run : runs) {
    const Config told = config_of(config, run);
    if (!config.scaler && (run.loss_scale.kind == train::LossScale::Kind::fixed ||
                           run.loss_scale.kind == train::LossScale::Kind::dynamic ||
                           run.loss_scale.kind == train::LossScale::Kind::statistics))
      throw UsageError({.where = "--no-scaler",
                        .what = "a loss scale is asked for, and none",
                        .seen = run.label,
                        .advice = "leave out one of them"});
    if (told.fp32_part.empty() && told.op_policy.empty()) continue;
    const bool is_16_bit =
        !run.precision.is_mixed() && at::isReducedFloatingType(run.precision.weights);
    if (is_16_bit)
      throw UsageError({.where = told.fp32_part.empty() ? "--op-policy" : "--fp32-part",
                        .what = "this is about the autocast region, and " + run.label +
                                " computes everything in 16 bits",
                        .seen = told.fp32_part.empty() ? told.op_policy : told.fp32_part,
                        .accepted = "a mixed precision (fp16, bf16), or one of FP32 or more"});
    if (!network.module) network = workload.make_network(static_cast<uint64_t>(config.seed));
    keep_in_fp32(told, network);
  }
}

RunResult run(const Config& config, const RunSpec& spec, const Workload& workload,
              c10::Device device, const JobOptions& options) {
  profile::quiet_down(device);
  Job job(config, spec, workload, device, options, profile::memory_use(device).current_bytes);
  job.advance(std::numeric_limits<int64_t>::max());
  return job.finish();
}

}  // namespace demi::recipes
