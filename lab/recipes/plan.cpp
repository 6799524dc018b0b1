#include "lab/recipes/plan.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <string_view>
#include <vector>

#include "demi/autocast/apply.h"
#include "demi/core/error.h"
#include "demi/core/nearest.h"
#include "demi/optim/decay_groups.h"
#include "lab/recipes/optimizers.h"
#include "lab/recipes/schedules.h"

namespace demi::recipes {
namespace {

int64_t steps_of_schedule(const Config& config, int64_t steps_per_epoch) {
  return std::max<int64_t>(steps_per_epoch * scheduled_epochs(config), 1);
}

}  // namespace

std::shared_ptr<torch::optim::Optimizer> make_optimizer(const Config& config,
                                                        const train::Network& network) {
  optim::DecayGroups groups;
  if (config.decay_by_rule)
    groups = optim::decay_groups(*network.module);
  else
    groups.decay = network.module->parameters();
  return find_optimizer(config.optimizer)
      .make(config, groups, {.skip_nonfinite = config.skip, .low_precision_grads = true});
}

train::LossFunction loss_function_of(const Config& config) {
  return {train::parse_loss(config.loss), config.loss_weight};
}

std::optional<OpPolicy> op_policy_of(const Config& config) {
  if (config.op_policy.empty()) return std::nullopt;
  return OpPolicy::from_file(config.op_policy);
}

namespace {

std::vector<std::string> words_between_commas(std::string_view text) {
  std::vector<std::string> words;
  while (!text.empty()) {
    const std::size_t comma = text.find(',');
    words.emplace_back(text.substr(0, comma));
    text.remove_prefix(comma == std::string_view::npos ? text.size() : comma + 1);
  }
  return words;
}

void require_parts(const train::Network& network, const std::vector<std::string>& parts,
                   const std::string& where) {
  std::vector<std::string> known;
  for (const auto& item : network.module->named_modules("", /*include_self=*/false))
    known.push_back(item.key());
  for (const std::string& part : parts)
    if (std::ranges::find(known, part) == known.end())
      throw UsageError({.where = where,
                        .what = "the model has no part of that name",
                        .seen = part,
                        .advice = did_you_mean(part, known)});
}

}  // namespace

std::vector<std::string> fp32_parts_of(const Config& config) {
  return words_between_commas(config.fp32_part);
}

void keep_in_fp32(const Config& config, const train::Network& network) {
  const std::vector<std::string> parts = fp32_parts_of(config);
  require_parts(network, parts, "--fp32-part");
  OpPolicy policy = op_policy_of(config).value_or(OpPolicy());
  require_parts(network, policy.fp32_parts(), "--op-policy " + config.op_policy);
  for (const std::string& part : parts) policy.keep_part_in_fp32(part);
  demi::apply(policy, *network.module);
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

namespace {

std::optional<bool> unless_auto(const std::string& word) {
  return word == "auto" ? std::nullopt : std::optional(word == "on");
}

}  // namespace

Backends backends_of(const Config& config) {
  Backends backends{
      .cuda_matmul_allow_tf32 = unless_auto(config.cuda_matmul_allow_tf32),
      .cudnn_allow_tf32 = unless_auto(config.cudnn_allow_tf32),
      .allow_fp16_reduced_precision_reduction = config.fp16_reduction,
      .allow_bf16_reduced_precision_reduction = config.bf16_reduction,
      .cudnn_enabled = config.cudnn_enabled,
      .cudnn_benchmark = config.cudnn_benchmark && !config.deterministic,
      .cudnn_deterministic = config.deterministic,
      .deterministic_algorithms = config.deterministic,
  };
  if (config.threads > 0) backends.threads = static_cast<int>(config.threads);
  return backends;
}

RunSpec run_of(const Config& config) {
  RunSpec run = parse_run(config.precision);
  run.loss_scale = train::parse_loss_scale(config.loss_scale);
  return run;
}

Config config_of(const Config& config, const RunSpec& run) {
  Config own = config;
  own.precision = run.precision.name;
  own.loss_scale = to_text(run.loss_scale);
  own.autocast = config.autocast && run.autocast;
  own.skip = config.skip && run.skip;
  if (!run.fp32_part.empty())
    own.fp32_part += (config.fp32_part.empty() ? "" : ",") + run.fp32_part;
  if (!run.op_policy.empty()) own.op_policy = run.op_policy;
  return own;
}

train::TrainerOptions trainer_options(const Config& shared, const RunSpec& run,
                                      int64_t batches_per_epoch, c10::Device device) {
  const Config config = config_of(shared, run);
  train::TrainerOptions options;
  options.epochs = config.epochs;
  options.max_steps = config.dry_run ? 2 : config.steps;
  options.precision = run.precision;
  options.autocast = config.autocast;
  options.op_policy = op_policy_of(config);
  options.loss_scale = run.loss_scale;
  if (!config.scaler) options.loss_scale = {train::LossScale::Kind::off, 0};
  options.scaler = {.init_scale = config.init_scale,
                    .growth_factor = config.growth_factor,
                    .backoff_factor = config.backoff_factor,
                    .growth_interval = config.growth_interval,
                    .skip_nonfinite = config.skip};
  options.loss = loss_function_of(config);
  options.label_smoothing = config.label_smoothing;
  options.clip_norm = config.clip_norm;
  options.gradient_penalty = config.gradient_penalty;
  options.accumulate = config.accumulate;
  options.ema_decay = config.ema;
  options.early_stopping = config.early_stopping;
  options.device = device;
  options.flush_subnormals = config.flush_subnormals;
  options.backends = backends_of(config);
  const int64_t steps = train::steps_of(batches_per_epoch, config.accumulate);
  options.schedule = make_schedule(config, steps);
  options.momentum_schedule = make_momentum_schedule(config, steps);
  return options;
}

}  // namespace demi::recipes
