#include "lab/workload/saved_network.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "demi/autocast/to_precision.h"
#include "demi/core/error.h"
#include "demi/tensor/device.h"
#include "lab/workload/weights_file.h"

namespace demi::workload {

train::Network saved_network(const settings::Resolved& run, train::Network made,
                             const checkpoint::NamedTensors& weights) {
  const Precision& precision = run.spec.precision;
  load_weights(*made.module, weights);
  if (precision.is_mixed()) {
    to_precision(*made.module, precision.shipped());
    settings::keep_in_fp32(run, made);
  } else {
    made.module->to(precision.weights);
  }
  return made;
}

namespace {

// What only a training reads. A value may not fit the precision of an evaluation, or name a file
// that is elsewhere now.
constexpr std::string_view kOfTraining[] = {"limit",
                                            "overfit-batches",
                                            "crop-padding",
                                            "crop-area",
                                            "horizontal-flip",
                                            "recompute",
                                            "epochs",
                                            "steps",
                                            "eval-every",
                                            "optimizer",
                                            "optimizer-options",
                                            "betas",
                                            "lr",
                                            "min-lr",
                                            "momentum",
                                            "nesterov",
                                            "weight-decay",
                                            "decay-by-rule",
                                            "schedule",
                                            "schedule-epochs",
                                            "schedule-steps",
                                            "warmup-epochs",
                                            "warmup-steps",
                                            "clip-norm",
                                            "skip-norm-above",
                                            "gradient-penalty",
                                            "accumulate",
                                            "tokens-per-step",
                                            "ema",
                                            "early-stopping",
                                            "loss-scale",
                                            "init-scale",
                                            "growth-factor",
                                            "backoff-factor",
                                            "growth-interval",
                                            "autocast",
                                            "scaler",
                                            "moments",
                                            "weight-mode",
                                            "skip",
                                            "ranks",
                                            "devices",
                                            "sync-batch-norm",
                                            "shard-optimizer",
                                            "dry-run",
                                            "monitor",
                                            "detect-anomaly",
                                            "what-if",
                                            "checkpoint-every",
                                            "keep-last",
                                            "keep-every",
                                            "keep-best",
                                            "best-by",
                                            "stop-after",
                                            "from",
                                            "from-state",
                                            "from-average",
                                            "resume"};

}  // namespace

settings::Config for_evaluation(settings::Config config) {
  static const settings::Config unset;
  for (const settings::Setting& setting : settings::all_settings())
    if (std::ranges::find(kOfTraining, setting.name) != std::end(kOfTraining))
      setting.set(config, setting.get(unset), setting.name);
  return config;
}

settings::Resolved resolve_saved(settings::Config config, std::string_view precision,
                                 std::string_view device) {
  const settings::RunSpec spec = settings::parse_run(precision);
  require_meaning(spec);
  config = for_evaluation(std::move(config));
  if (!spec.precision.is_mixed()) {  // which a policy is for, whose file may be elsewhere
    config.op_policy.clear();
    config.fp32_part.clear();
  }
  return settings::resolve(config, spec, pick_device(std::string(device)));
}

void require_meaning(const settings::RunSpec& run) {
  const bool scales = run.loss_scale.kind != LossScale::Kind::automatic;
  if (!scales && run.skip && run.autocast) return;
  throw UsageError({.where = "--precision",
                    .what = "a test has no gradients to scale or to skip, and is in a region as "
                            "shipped",
                    .seen = run.label,
                    .accepted = "a precision, with fp32-part=NAME or op-policy=FILE if wanted"});
}

}  // namespace demi::workload
