#include "lab/settings/resolved.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>

#include "demi/autocast/apply.h"
#include "demi/autocast/to_precision.h"
#include "demi/core/error.h"
#include "demi/core/nearest.h"
#include "demi/optim/decay_groups.h"
#include "demi/optim/muon_groups.h"
#include "demi/quantization/recipe.h"
#include "demi/tensor/module_tensors.h"
#include "lab/models/imported.h"
#include "lab/settings/norm_limit.h"

namespace demi::settings {
namespace {

std::optional<bool> unless_auto(const std::string& word) {
  return word == "auto" ? std::nullopt : std::optional(word == "on");
}

}  // namespace

RunSpec run_of(const Config& config, c10::Device device) {
  RunSpec run = run_in(config.precision == "mixed" ? mixed_precision_of(device.type())
                                                   : parse_precision(config.precision));
  run.loss_scale = parse_loss_scale(config.loss_scale);
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
  // Its text, as of --op-policy: a checkpoint keeps what its run was trained with.
  if (!run.op_policy.empty()) set(own, "op-policy", run.op_policy, "--runs");
  if (!run.weight_mode.empty()) own.weight_mode = run.weight_mode;
  if (!run.cuda_graph.empty()) own.cuda_graph = run.cuda_graph;
  return own;
}

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

namespace {

void check_moments(const Config& config) {
  if (config.moments == "fp32") return;
  if (config.optimizer == "adagrad")
    throw UsageError({.where = "--moments",
                      .what = "has no effect on adagrad, whose sum stays in fp32",
                      .seen = config.moments,
                      .advice = "leave out --moments"});
  if (config.optimizer != "sgd" || config.momentum != 0) return;
  throw UsageError({.where = "--moments",
                    .what = "has no effect on sgd without momentum, which keeps none",
                    .seen = config.moments,
                    .advice = "leave out --moments, or set --momentum"});
}

// Refuses weight modes that do not fit: fp16 has split alone, and without their region weights of
// 16 bits meet FP32.
void check_weight_mode(const Config& config, const Precision& precision) {
  if (config.weight_mode == "master") return;
  const bool fits = precision.shipped() == at::kBFloat16 ||
                    (precision.shipped() == at::kHalf && config.weight_mode == "split");
  if (fits && (config.autocast || !precision.is_mixed())) return;
  throw UsageError(
      {.where = "--weight-mode",
       .what = "weights are not kept so in this precision",
       .seen = config.weight_mode + " with --precision " + std::string(precision.name) +
               (config.autocast ? "" : " --no-autocast"),
       .accepted = "bf16-true, and bf16 with its region; split: fp16-true and fp16, too",
       .advice =
           "--weight-mode master, or --precision bf16; of one run of several: --runs fp32,bf16:" +
           config.weight_mode});
}

// A setting holds the text of a policy, or a path: of a file that is not there, or of a config that
// a program filled in itself.
OpPolicy policy_of(const std::string& text) {
  return text.find('\n') == text.npos ? OpPolicy::from_file(text)
                                      : OpPolicy::from_text(text, "op-policy");
}

}  // namespace

Resolved resolve(const Config& config, const RunSpec& run, c10::Device device) {
  Resolved result{.config = config_of(config, run),
                  .spec = run,
                  .device = device,
                  .optimizer = &find_optimizer(config.optimizer),
                  .schedule = &find_schedule(config.schedule),
                  .loss = {train::parse_loss(config.loss), config.loss_weight},
                  .checkpoint_every = train::Every::parse(config.checkpoint_every),
                  .stop_after_minutes = train::minutes_in(config.stop_after).value_or(0),
                  .backends = backends_of(config)};
  if (!config.model.empty()) result.model = &models::find_model(config.model);
  if (has_own_loss(config))
    result.loss = [weight = config.loss_weight](const at::Tensor& output, const at::Tensor&) {
      return output * weight;
    };
  if (!config.data.empty()) result.data = &data::data_set(config.data);
  const Config& own = result.config;
  result.optimizer->check(own);  // before anything is loaded
  check_moments(own);
  check_weight_mode(own, run.precision);
  if (!own.op_policy.empty()) result.op_policy = policy_of(own.op_policy);
  result.fp32_parts = words_of(own.fp32_part);
  if (result.fp32_parts.back().empty()) result.fp32_parts.pop_back();
  return result;
}

Resolved resolve(const Config& config, c10::Device device) {
  return resolve(config, run_of(config, device), device);
}

std::vector<Resolved> resolve(const Config& config, std::span<const RunSpec> runs,
                              c10::Device device) {
  std::vector<Resolved> all;
  for (const RunSpec& run : runs) all.push_back(resolve(config, run, device));
  return all;
}

namespace {

OptimizerParameters optimizer_parameters(const Resolved& run, const torch::nn::Module& module) {
  OptimizerParameters parameters;
  if (run.config.decay_by_rule) {
    optim::DecayGroups groups = optim::decay_groups(module);
    parameters = {.decay = std::move(groups.decay), .no_decay = std::move(groups.no_decay)};
  } else {
    parameters.decay = tensor::without_names(tensor::parameters_once(module));
  }
  if (!run.optimizer->takes_matrices) return parameters;
  parameters.hidden = optim::muon_parameters(module).hidden;
  std::erase_if(parameters.decay, [&](const at::Tensor& one) {
    return std::ranges::any_of(parameters.hidden,
                               [&](const at::Tensor& hidden) { return hidden.is_same(one); });
  });
  return parameters;
}

}  // namespace

std::shared_ptr<torch::optim::Optimizer> make_optimizer(const Resolved& run,
                                                        const train::Network& network) {
  const optim::WeightMode mode = find_weight_mode(run.config.weight_mode);
  if (mode != optim::WeightMode::master && run.spec.precision.is_mixed())
    to_precision(*network.module, run.spec.precision.shipped());
  return run.optimizer->make(
      run.config, optimizer_parameters(run, *network.module),
      {.skip_nonfinite = run.config.skip,
       .low_precision_grads = true,
       .skip_norm_above = norm_limit_of(run.config.skip_norm_above, "--skip-norm-above"),
       .moments = find_moments(run.config.moments),
       .weight_mode = mode,
       .rounding_seed = static_cast<std::uint64_t>(run.config.seed)});
}

namespace {

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

void apply_policy(const Resolved& run, const train::Network& network) {
  require_parts(network, run.fp32_parts, "--fp32-part");
  const OpPolicy given = run.op_policy.value_or(OpPolicy());
  std::vector<std::string> named;
  for (const PartRule& rule : given.parts())
    if (rule.part != "*") named.push_back(rule.part);
  require_parts(network, named, "--op-policy");
  const std::string_view recipe = run.spec.autocast ? run.spec.precision.recipe : "";
  OpPolicy policy = recipe.empty() ? OpPolicy() : OpPolicy::of_recipe(recipe, *network.module);
  for (const PartRule& rule : given.parts()) policy.set_part(rule.part, rule.treatment, rule.until);
  for (const std::string& part : run.fp32_parts) policy.keep_part_in_fp32(part);
  demi::apply(policy, *network.module, static_cast<std::uint64_t>(run.config.seed));
}

std::string layers_in_words(const torch::nn::Module& module) {
  std::vector<QuantizedLayer> layers = quantized_layers(module);
  if (std::ranges::any_of(layers, &QuantizedLayer::was_used))
    std::erase_if(layers, [](const QuantizedLayer& one) { return !one.was_used; });
  std::string text;
  for (const auto& recipe : quantization::recipes()) {
    const auto is_in = [&](const QuantizedLayer& one) { return one.recipe == recipe.name; };
    if (const auto count = std::ranges::count_if(layers, is_in); count > 0)
      text += fmt::format("{}{} {} in {} ({})", text.empty() ? "" : ", ", count,
                          count == 1 ? "weight" : "weights", recipe.name, recipe.summary);
  }
  if (text.empty()) return text;
  if (const auto padded = std::ranges::count_if(layers, &QuantizedLayer::is_padded); padded > 0)
    text += fmt::format(", {} of a size that no block divides (filled up with zeros)", padded);
  std::vector<std::string> others;
  for (const auto& item : module.named_parameters())
    if (item.value().dim() > 1 &&
        std::ranges::find(layers, item.key(), &QuantizedLayer::weight) == layers.end())
      others.push_back(item.key());
  constexpr std::size_t kNamed = 3;
  if (others.empty()) return text;
  const std::size_t named = std::min(others.size(), kNamed);
  text += fmt::format(
      ", not {}",
      fmt::join(others.begin(), others.begin() + static_cast<std::ptrdiff_t>(named), ", "));
  if (others.size() > named) text += fmt::format(" and {} more", others.size() - named);
  return text;
}

namespace {

int64_t steps_of_schedule(const Config& config, int64_t steps_per_epoch) {
  if (config.schedule_steps > 0) return config.schedule_steps;
  return std::max<int64_t>(steps_per_epoch * scheduled_epochs(config), 1);
}

// Requires enough steps of a schedule: past its last step the rate is 0, or there is none.
void require_steps(const Resolved& run, int64_t steps_per_epoch) {
  const Config& config = run.config;
  const int64_t all = steps_per_epoch * config.epochs;
  const int64_t steps = config.steps > 0 ? std::min(config.steps, all) : all;
  if (config.schedule_steps == 0 || config.schedule_steps >= steps || config.min_lr > 0) return;
  throw UsageError({.where = "settings.make_schedule",
                    .what = "the schedule ends before training does",
                    .seen = fmt::format("--schedule {} --schedule-steps {}, {} steps of training",
                                        config.schedule, config.schedule_steps, steps),
                    .advice = "as many --schedule-steps or more, fewer --steps, or --min-lr"});
}

// Steps of the warm-up, and the divisor of the rate: nanoGPT's rises to --lr in the step after the
// warm-up (train.py, get_lr), a warm-up of epochs in its last step.
struct WarmUp {
  int64_t steps, whole;
};

WarmUp warm_up(const Resolved& run, int64_t steps_per_epoch) {
  const Config& config = run.config;
  if (config.warmup_steps > 0) return {config.warmup_steps, config.warmup_steps + 1};
  const int64_t steps =
      run.schedule->has_warmup
          ? 0
          : std::llround(config.warmup_epochs * static_cast<double>(steps_per_epoch));
  return {steps, steps};
}

}  // namespace

optim::lr::Schedule make_schedule(const Resolved& run, int64_t steps_per_epoch) {
  const Config& config = run.config;
  const ScheduleKind& kind = *run.schedule;
  steps_per_epoch = std::max<int64_t>(steps_per_epoch, 1);  // of data without a batch
  require_steps(run, steps_per_epoch);
  const WarmUp warmup = warm_up(run, steps_per_epoch);
  const int64_t steps =
      std::max<int64_t>(steps_of_schedule(config, steps_per_epoch) - warmup.steps, 1);
  const optim::lr::Schedule rule =
      kind.rate ? kind.rate(config, steps, steps_per_epoch) : optim::lr::Schedule();
  if (warmup.steps == 0) return rule;
  return [rule, warmup](int64_t step, double base) {
    if (step < warmup.steps)
      return base * static_cast<double>(step + 1) / static_cast<double>(warmup.whole);
    return rule ? rule(step - warmup.steps, base) : base;
  };
}

optim::lr::Schedule make_momentum_schedule(const Resolved& run, int64_t steps_per_epoch) {
  const bool has_momentum = run.config.momentum != 0 || !run.optimizer->momentum_is_optional;
  if (!run.schedule->momentum || !has_momentum) return {};
  return run.schedule->momentum(run.config, steps_of_schedule(run.config, steps_per_epoch));
}

bool has_own_loss(const Config& config) {
  return config.model_output == "loss" && models::is_network_file(config.model);
}

loop::GraphMode graph_mode_of(const Resolved& run) {
  const std::string& word = run.config.cuda_graph;
  if (word == "off") return loop::GraphMode::off;
  if (word == "on" && !run.device.is_cuda())
    throw UsageError({.where = "--cuda-graph",
                      .what = "a step is recorded on a CUDA device alone",
                      .seen = "on, with " + run.device.str(),
                      .accepted = "off or auto on other devices",
                      .advice = "take --cuda-graph auto, or --device cuda"});
  return word == "on" ? loop::GraphMode::on : loop::GraphMode::automatic;
}

train::BestBy best_by(const Config& config) {
  if (config.best_by == "auto") return train::BestBy::automatic;
  return config.best_by == "test_accuracy" ? train::BestBy::accuracy : train::BestBy::loss;
}

train::TrainerOptions trainer_options(const Resolved& run, int64_t batches_per_epoch) {
  const Config& config = run.config;
  train::TrainerOptions options;
  options.epochs = config.epochs;
  options.max_steps = last_step(config);
  options.precision = run.spec.precision;
  options.autocast = config.autocast;
  options.op_policy = run.op_policy;
  options.loss_scale = run.spec.loss_scale;
  if (!config.scaler) options.loss_scale = {LossScale::Kind::off, 0};
  options.scaler = {.init_scale = config.init_scale,
                    .growth_factor = config.growth_factor,
                    .backoff_factor = config.backoff_factor,
                    .growth_interval = config.growth_interval,
                    .skip_nonfinite = config.skip};
  options.loss = run.loss;
  options.label_smoothing = config.label_smoothing;
  options.clip_norm = config.clip_norm;
  options.gradient_penalty = config.gradient_penalty;
  options.accumulate = batches_of_step(config);
  options.ema_decay = config.ema;
  options.early_stopping = config.early_stopping;
  options.best_by = best_by(config);
  options.history_steps = 0;  // the report shows all
  options.device = run.device;
  options.flush_subnormals = config.flush_subnormals;
  options.backends = run.backends;
  options.graph = graph_mode_of(run);
  const int64_t steps = train::steps_of(batches_per_epoch, batches_of_step(config));
  options.schedule = make_schedule(run, steps);
  options.momentum_schedule = make_momentum_schedule(run, steps);
  return options;
}

}  // namespace demi::settings
