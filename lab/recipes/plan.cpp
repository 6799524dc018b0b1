#include "lab/recipes/plan.h"

#include <algorithm>
#include <cmath>

#include "demi/autocast/apply.h"
#include "demi/optim/decay_groups.h"
#include "lab/recipes/optimizers.h"
#include "lab/recipes/schedules.h"

namespace demi::train {
namespace {

int64_t steps_of_schedule(const Config& config, int64_t steps_per_epoch) {
  return std::max<int64_t>(steps_per_epoch * scheduled_epochs(config), 1);
}

}  // namespace

std::shared_ptr<torch::optim::Optimizer> make_optimizer(const Config& config,
                                                        const Network& network) {
  optim::DecayGroups groups;
  if (config.decay_by_rule)
    groups = optim::decay_groups(*network.module);
  else
    groups.decay = network.module->parameters();
  return find_optimizer(config.optimizer).make(config, groups, {});
}

void keep_in_fp32(const Config& config, const Network& network) {
  std::string_view rest = config.fp32_part;
  while (!rest.empty()) {
    const std::size_t comma = rest.find(',');
    demi::apply(Policy("float32"), *network.module, rest.substr(0, comma));
    rest.remove_prefix(comma == std::string_view::npos ? rest.size() : comma + 1);
  }
}

optim::lr::Schedule make_schedule(const Config& config, int64_t steps_per_epoch) {
  const ScheduleKind& kind = find_schedule(config.schedule);
  steps_per_epoch = std::max<int64_t>(steps_per_epoch, 1);  // of data without a batch
  const int64_t warmup =
      kind.has_warmup ? 0
                      : std::llround(config.warmup_epochs * static_cast<double>(steps_per_epoch));
  const int64_t steps = std::max<int64_t>(steps_of_schedule(config, steps_per_epoch) - warmup, 1);
  const optim::lr::Schedule rule =
      kind.rate ? kind.rate(config, steps, steps_per_epoch) : optim::lr::Schedule();
  if (warmup == 0) return rule;
  return [rule, warmup](int64_t step, double base) {
    if (step < warmup) return base * static_cast<double>(step + 1) / static_cast<double>(warmup);
    return rule ? rule(step - warmup, base) : base;
  };
}

optim::lr::Schedule make_momentum_schedule(const Config& config, int64_t steps_per_epoch) {
  const ScheduleKind& kind = find_schedule(config.schedule);
  const bool has_momentum =
      config.momentum != 0 || !find_optimizer(config.optimizer).momentum_is_optional;
  if (!kind.momentum || !has_momentum) return {};
  return kind.momentum(config, steps_of_schedule(config, steps_per_epoch));
}

RunSpec run_of(const Config& config) {
  RunSpec run = parse_run(config.precision);
  run.loss_scale = parse_loss_scale(config.loss_scale);
  return run;
}

TrainerOptions trainer_options(const Config& config, const RunSpec& run, int64_t batches_per_epoch,
                               c10::Device device) {
  TrainerOptions options;
  options.epochs = config.epochs;
  options.max_steps = config.dry_run ? 2 : config.steps;
  options.precision = run.precision;
  options.autocast = config.autocast;
  options.loss_scale = run.loss_scale;
  if (!config.scaler) options.loss_scale = {LossScale::Kind::off, 0};
  options.scaler = {.init_scale = config.init_scale,
                    .growth_factor = config.growth_factor,
                    .backoff_factor = config.backoff_factor,
                    .growth_interval = config.growth_interval};
  options.loss = parse_loss(config.loss);
  options.label_smoothing = config.label_smoothing;
  options.clip_norm = config.clip_norm;
  options.gradient_penalty = config.gradient_penalty;
  options.accumulate = config.accumulate;
  options.ema_decay = config.ema;
  options.early_stopping = config.early_stopping;
  options.device = device;
  options.flush_subnormals = config.flush_subnormals;
  const int64_t steps = steps_of(batches_per_epoch, config.accumulate);
  options.schedule = make_schedule(config, steps);
  options.momentum_schedule = make_momentum_schedule(config, steps);
  return options;
}

}  // namespace demi::train
