#include "lab/recipes/plan.h"

#include <algorithm>
#include <cmath>

#include "demi/autocast/apply.h"
#include "demi/core/error.h"
#include "demi/optim/adam.h"
#include "demi/optim/adamw.h"
#include "demi/optim/decay_groups.h"
#include "demi/optim/lamb.h"
#include "demi/optim/lion.h"
#include "demi/optim/sgd.h"

namespace demi::train {
namespace {

template <class Optimizer, class Options>
std::shared_ptr<torch::optim::Optimizer> make(const Config& config, const Network& network,
                                              const Options& options) {
  if (config.decay_by_rule)
    return std::make_shared<Optimizer>(optim::with_decay_by_rule(*network.module, options),
                                       options);
  return std::make_shared<Optimizer>(network.module->parameters(), options);
}

optim::lr::OneCycleOptions one_cycle_of(const Config& config, int64_t steps_per_epoch) {
  return {.total_steps = std::max<int64_t>(steps_per_epoch * scheduled_epochs(config), 1),
          .max_lr = config.lr};
}

// From the full rate on, after that many steps of warm-up, to 0 at the end of the schedule.
optim::lr::Schedule after_warmup(const Config& config, int64_t steps_per_epoch, int64_t warmup) {
  const int64_t steps = std::max<int64_t>(steps_per_epoch * scheduled_epochs(config) - warmup, 1);
  if (config.schedule == "linear") return optim::lr::polynomial(steps);
  if (config.schedule == "cosine") {
    const int64_t epochs = (steps - 1) / steps_per_epoch + 1;
    return [rule = optim::lr::cosine(epochs), steps_per_epoch](int64_t step, double base) {
      return rule(step / steps_per_epoch, base);
    };
  }
  return [](int64_t, double base) { return base; };
}

}  // namespace

std::shared_ptr<torch::optim::Optimizer> make_optimizer(const Config& c, const Network& network) {
  if (c.optimizer == "sgd")
    return make<optim::SGD>(c, network,
                            optim::SGDOptions(c.lr)
                                .momentum(c.momentum)
                                .nesterov(c.nesterov)
                                .weight_decay(c.weight_decay));
  if (c.optimizer == "adam")
    return make<optim::Adam>(c, network, optim::AdamOptions(c.lr).weight_decay(c.weight_decay));
  if (c.optimizer == "lamb")
    return make<optim::LAMB>(c, network, optim::LAMBOptions(c.lr).weight_decay(c.weight_decay));
  if (c.optimizer == "lion")
    return make<optim::Lion>(c, network, optim::LionOptions(c.lr).weight_decay(c.weight_decay));
  return make<optim::AdamW>(c, network, optim::AdamWOptions(c.lr).weight_decay(c.weight_decay));
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
  steps_per_epoch = std::max<int64_t>(steps_per_epoch, 1);  // of data without a batch
  if (config.schedule == "one-cycle")
    return optim::lr::one_cycle(one_cycle_of(config, steps_per_epoch));
  const auto warmup = static_cast<int64_t>(
      std::llround(config.warmup_epochs * static_cast<double>(steps_per_epoch)));
  if (config.schedule == "constant" && warmup == 0) return {};
  const optim::lr::Schedule rule = after_warmup(config, steps_per_epoch, warmup);
  return [rule, warmup](int64_t step, double base) {
    return step < warmup ? base * static_cast<double>(step + 1) / static_cast<double>(warmup)
                         : rule(step - warmup, base);
  };
}

optim::lr::Schedule make_momentum_schedule(const Config& config, int64_t steps_per_epoch) {
  if (config.schedule != "one-cycle") return {};
  if (config.optimizer == "sgd" && config.momentum == 0) return {};
  return optim::lr::one_cycle_momentum(one_cycle_of(config, steps_per_epoch));
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
