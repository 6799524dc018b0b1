#include "lab/recipes/saved_network.h"

#include "demi/autocast/to_precision.h"
#include "demi/core/error.h"
#include "demi/tensor/device.h"
#include "lab/recipes/weights_file.h"

namespace demi::recipes {

train::Network saved_network(const Resolved& run, train::Network made,
                             const checkpoint::NamedTensors& weights) {
  const train::Precision& precision = run.spec.precision;
  load_weights(*made.module, weights);
  if (precision.is_mixed()) {
    to_precision(*made.module, precision.shipped());
    keep_in_fp32(run, made);
  } else {
    made.module->to(precision.weights);
  }
  return made;
}

Resolved resolve_saved(Config config, std::string_view precision, std::string_view device) {
  const RunSpec spec = parse_run(precision);
  require_meaning(spec);
  if (!spec.precision.is_mixed()) {  // which a policy is for, whose file may be elsewhere
    config.op_policy.clear();
    config.fp32_part.clear();
  }
  return resolve(config, spec, pick_device(std::string(device)));
}

void require_meaning(const RunSpec& run) {
  const bool scales = run.loss_scale.kind != train::LossScale::Kind::automatic;
  if (!scales && run.skip && run.autocast) return;
  throw UsageError({.where = "--precision",
                    .what = "a test has no gradients to scale or to skip, and is in a region as "
                            "shipped",
                    .seen = run.label,
                    .accepted = "a precision, with fp32-part=NAME or op-policy=FILE if wanted"});
}

}  // namespace demi::recipes
