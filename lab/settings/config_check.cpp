#include <fmt/format.h>

#include <string>
#include <string_view>

#include "demi/core/error.h"
#include "lab/data/data_sets.h"
#include "lab/models/registry.h"
#include "lab/settings/config.h"
#include "lab/settings/devices.h"
#include "lab/settings/optimizers.h"
#include "lab/settings/run_spec.h"
#include "lab/settings/schedules.h"

namespace demi::settings {
namespace {

/// A Config whose words did not come through Setting::set may hold any, and so may its models'
/// settings.
void check_words(const Config& config) {
  Config copy;
  for (const Setting& setting : all_settings())
    if (!setting.accepted.empty()) setting.set(copy, setting.get(config), setting.name);
  for (const auto& [name, text] : config.model_settings) set(copy, name, text, name);
}

// The entry of Config::data; an empty one for a config without data.
data::DataSet data_of(const Config& config) {
  return config.data.empty() ? data::DataSet() : data::data_set(config.data);
}

/// Refuses synthetic data of an impossible size: they are held in memory as a whole, and LibTorch
/// would complain of an overflow.
void check_synthetic(const Config& c) {
  const double bytes = static_cast<double>(c.batch_size * c.ranks) *
                       static_cast<double>(c.batches) * static_cast<double>(synthetic_bytes(c));
  constexpr double kMostBytes = 0x1p50;
  if (bytes > kMostBytes)
    throw UsageError(
        {.where = "settings.check",
         .what = "the synthetic data do not fit in any memory",
         .seen = fmt::format("{:.3g} bytes ({} batches of {})", bytes, c.batches, c.batch_size),
         .accepted = fmt::format("at most {:.3g}", kMostBytes),
         .advice = "fewer --batches, a smaller --batch-size or smaller examples"});
}

[[noreturn]] void refuse_together(std::string_view what, std::string_view seen,
                                  std::string_view advice) {
  throw UsageError({.where = "settings.check", .what = what, .seen = seen, .advice = advice});
}

void check_files(const Config& config) {
  const data::DataSet set = data_of(config);
  const data::Layout layout = set.layout;
  const bool is_csv = layout == data::Layout::csv, is_tokens = layout == data::Layout::tokens;
  const bool is_running = is_tokens || (layout == data::Layout::text && !set.is_published());
  if (is_csv && (config.train_file.empty() || config.test_file.empty()))
    refuse_together("--data csv names no files", "", "add --train-file and --test-file");
  if (is_running && config.train_file.empty())
    refuse_together("--data " + config.data + " names no file", "", "add --train-file");
  if (is_tokens && config.vocabulary_size == 0)
    refuse_together("token files do not say how many tokens there are", "--vocabulary-size 0",
                    "add --vocabulary-size, 50257 for GPT-2's");
  if (!is_csv && !is_running && !(config.train_file.empty() && config.test_file.empty()))
    refuse_together("--train-file and --test-file belong to --data csv, text or tokens",
                    config.data, "add --data csv, --data text or --data tokens");
  if (layout == data::Layout::picture_folder && config.data_dir.empty())
    refuse_together("--data folder names no folder", "", "add --data-dir");
}

void check_min_lr(const Config& config, const ScheduleKind& schedule) {
  if (config.min_lr == 0) return;
  if (!schedule.has_least)
    refuse_together("a " + schedule.name + " schedule has no least rate",
                    fmt::format("--schedule {} --min-lr {:g}", config.schedule, config.min_lr),
                    "leave out --min-lr, or name a linear or cosine schedule");
  if (config.min_lr > config.lr)
    refuse_together("the least learning rate is above the learning rate",
                    fmt::format("--min-lr {:g} --lr {:g}", config.min_lr, config.lr),
                    "a --min-lr of at most --lr");
}

// A schedule by steps, in place of one by epochs.
void check_steps_of_schedule(const Config& config, const ScheduleKind& schedule) {
  if (config.warmup_steps > 0 && (config.warmup_epochs > 0 || schedule.has_warmup))
    refuse_together(schedule.has_warmup ? "a " + schedule.name + " schedule has its own warm-up"
                                        : "the warm-up is given twice",
                    fmt::format("--warmup-steps {} --warmup-epochs {:g}", config.warmup_steps,
                                config.warmup_epochs),
                    "leave out --warmup-steps");
  if (config.schedule_steps == 0) return;
  if (config.schedule_epochs > 0)
    refuse_together("the length of the schedule is given twice",
                    fmt::format("--schedule-steps {} --schedule-epochs {}", config.schedule_steps,
                                config.schedule_epochs),
                    "leave out one of them");
  if (!schedule.ends || schedule.by_epoch)
    refuse_together(
        "a " + schedule.name + " schedule is not made for a number of steps",
        fmt::format("--schedule {} --schedule-steps {}", config.schedule, config.schedule_steps),
        "leave out --schedule-steps, or name linear, cosine-by-step or one-cycle");
  if (config.warmup_steps >= config.schedule_steps)
    refuse_together("the warm-up takes the whole schedule",
                    fmt::format("--warmup-steps {} --schedule-steps {}", config.warmup_steps,
                                config.schedule_steps),
                    "fewer --warmup-steps, or more --schedule-steps");
}

void check_schedule(const Config& config) {
  const ScheduleKind& schedule = find_schedule(config.schedule);
  check_min_lr(config, schedule);
  check_steps_of_schedule(config, schedule);
  if (schedule.ends && config.schedule_steps == 0 && scheduled_epochs(config) < config.epochs)
    refuse_together("the schedule ends before training does",
                    fmt::format("--schedule {} --schedule-epochs {} --epochs {}", config.schedule,
                                config.schedule_epochs, config.epochs),
                    "as many --schedule-epochs as --epochs or more, or leave them out");
  if (schedule.has_warmup && config.warmup_epochs > 0)
    refuse_together("a " + schedule.name + " schedule has its own warm-up", "",
                    "leave out --warmup-epochs");
  if (schedule.ends && config.warmup_epochs > 0 &&
      config.warmup_epochs >= static_cast<double>(scheduled_epochs(config)))
    refuse_together(
        "the warm-up takes the whole schedule",
        fmt::format("--warmup-epochs {:g} of {}", config.warmup_epochs, scheduled_epochs(config)),
        "fewer --warmup-epochs, or more --schedule-epochs");
}

void check_tokens_per_step(const Config& config) {
  const std::string seen = fmt::format("--tokens-per-step {}", config.tokens_per_step);
  if (config.accumulate > 1)
    refuse_together("both say how many batches a step has",
                    fmt::format("{} --accumulate {}", seen, config.accumulate),
                    "leave out one of them");
  if (config.batch_size == 0)
    refuse_together("a batch size that is found in time may not divide the tokens of a step",
                    seen + " --batch-size auto", "name a --batch-size");
  const int64_t batch = tokens_of_batch(config), below = config.tokens_per_step / batch * batch;
  if (below == config.tokens_per_step) return;
  refuse_together(
      "a step's tokens are no whole number of batches",
      fmt::format("{}, and {} x {} tokens a batch on {} rank{}", seen, config.batch_size,
                  config.context, config.ranks, config.ranks == 1 ? "" : "s"),
      below == 0 ? std::to_string(batch) : fmt::format("{}, or {}", below, below + batch));
}

void check_contradictions(const Config& config) {
  if (config.overfit_batches > 0 && (config.limit > 0 || config.test_limit > 0))
    refuse_together(
        "the batches of --overfit-batches are trained and tested on, and no limit counts",
        fmt::format("--overfit-batches {} --limit {} --test-limit {}", config.overfit_batches,
                    config.limit, config.test_limit),
        "leave out one of them");
  const bool asks_for_scale = config.loss_scale != "auto" && config.loss_scale != "off";
  if (!config.scaler && asks_for_scale)
    refuse_together("a loss scale is asked for, and none",
                    "--no-scaler --loss-scale " + config.loss_scale, "leave out one of them");
  if (config.best_by == "test_accuracy" && config.loss == "mse")
    refuse_together("a regression has no accuracy by which a test is the best",
                    "--best-by test_accuracy --loss mse", "--best-by test_loss");
  if (config.from.empty() && (config.from_state || config.from_average))
    refuse_together("it says what is taken of saved weights, and none are named",
                    config.from_state ? "--from-state" : "--from-average",
                    "add --from RUN, or leave it out");
  if (config.from_state && config.from_average)
    refuse_together("the moments are those of the weights, not of their average",
                    "--from-state --from-average", "leave out one of them");
  const models::ModelInfo* const model = models::model_named(config.model);
  if (config.gradient_penalty > 0 && model && !model->has_second_derivative)
    refuse_together(
        "a gradient penalty needs a second derivative, which the kernels of attention "
        "and of the loss do not have",
        fmt::format("--gradient-penalty {:g} --model {}", config.gradient_penalty, model->name),
        "leave out --gradient-penalty");
  if (counts_tokens(config)) check_tokens_per_step(config);
  if (config.top_k > 0 && config.loss == "bce")
    refuse_together("binary cross entropy has one output, which is among the k likeliest always",
                    fmt::format("--top-k {} --loss bce", config.top_k), "leave out --top-k");
}

}  // namespace

void check(const Config& config) {
  check_words(config);
  check_contradictions(config);
  check_synthetic(config);
  check_files(config);
  if (config.optimizer == "sgd" && config.nesterov && config.momentum == 0)
    refuse_together("Nesterov's form needs a momentum", "momentum 0", "add --momentum 0.9");
  check_schedule(config);
  check_devices(config);
  if (config.ranks > 1 && config.batch_size == 0)
    refuse_together("each of several ranks would find a batch size of its own", "--batch-size auto",
                    "name the examples of a step and rank");
  if (config.ranks == 1 && config.shard_optimizer)
    refuse_together("one process has nobody to share the optimizer's state with",
                    "--shard-optimizer without --ranks", "add --ranks 2 or more");
  if (config.ranks > 1 && config.gradient_penalty > 0)
    refuse_together("a gradient penalty is of one rank's batch, not of all",
                    "--gradient-penalty with --ranks", "leave out one of them");
}

}  // namespace demi::settings
