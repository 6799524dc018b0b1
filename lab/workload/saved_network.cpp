#include "lab/workload/saved_network.h"

#include <limits>
#include <utility>

#include "demi/autocast/apply.h"
#include "demi/autocast/to_precision.h"
#include "demi/core/error.h"
#include "demi/tensor/device.h"
#include "lab/settings/part_of_run.h"
#include "lab/workload/weights_file.h"

namespace demi::workload {

train::Network saved_network(const settings::Resolved& run, train::Network made,
                             const checkpoint::NamedTensors& weights,
                             std::optional<std::int64_t> steps) {
  const Precision& precision = run.spec.precision;
  load_weights(*made.module, weights);
  if (precision.is_mixed()) {
    to_precision(*made.module, precision.shipped());
    settings::apply_policy(run, made);
    constexpr auto kAfterEveryUntil = std::numeric_limits<std::int64_t>::max() - 1;
    set_step(*made.module, steps ? *steps - 1 : kAfterEveryUntil);
  } else {
    made.module->to(precision.weights);
  }
  return made;
}

// The settings for an evaluation. Settings that only a training reads may not fit the evaluation's
// precision, or name a file that has moved.
settings::Config for_evaluation(settings::Config config) {
  using settings::Part;
  static const settings::Config unset;
  for (const settings::Setting& setting : settings::all_settings()) {
    const Part part = settings::part_of_run(setting.name);
    if (part != Part::kModel && part != Part::kPrecision && part != Part::kTest)
      setting.set(config, setting.get(unset), setting.name);
  }
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
