#include "lab/settings/effects.h"

#include <initializer_list>

#include "demi/core/error.h"
#include "lab/data/data_sets.h"
#include "lab/models/imported.h"
#include "lab/models/registry.h"
#include "lab/settings/model_settings.h"
#include "lab/settings/optimizers.h"
#include "lab/settings/run_spec.h"
#include "lab/settings/schedules.h"

namespace demi::settings {
namespace {

// The facts that decide it.
struct Facts {
  const Config& config;
  data::DataSet set;
  bool is(data::Kind kind) const { return set.kind == kind; }
  bool is(data::Layout layout) const { return set.layout == layout; }
};

struct Need {
  std::initializer_list<std::string_view> settings;
  bool (*is_met)(const Facts&);
  std::string_view otherwise;
};

using data::Kind;
using data::Layout;

// Whether the loss scale moves, as a dynamic one does. "mixed" stands for several runs, or for an
// unknown device.
bool has_moving_scale(const Facts& f) {
  const Config& c = f.config;
  if (c.precision == "mixed") return true;
  if (!c.scaler || c.loss_scale == "off") return false;
  if (c.loss_scale == "auto") return parse_precision(c.precision).autocast == c10::kHalf;
  return parse_loss_scale(c.loss_scale).kind != LossScale::Kind::fixed;
}

// Whether the run has an autocast region. "mixed": as above.
bool has_region(const Facts& f) {
  const Config& c = f.config;
  return c.precision == "mixed" || (c.autocast && parse_precision(c.precision).is_mixed());
}

const Need kNeeds[] = {
    {{"channels-last"},
     [](const Facts& f) { return models::is_network_file(f.config.model) && f.is(Kind::pictures); },
     "it is about networks of .pt2 files that read pictures; demi's own are in channels_last"},
    {{"model-output", "fuse"},
     [](const Facts& f) { return models::is_network_file(f.config.model); },
     "it is about networks of .pt2 files"},
    {{"crop-padding"},
     [](const Facts& f) { return f.is(Kind::pictures) && !f.is(Layout::picture_folder); },
     "this crop is of pictures of one size (CIFAR, MNIST); a folder's have --crop-area"},
    {{"crop-area"},
     [](const Facts& f) { return f.is(Layout::picture_folder); },
     "this crop is of a folder's pictures (--data folder)"},
    {{"horizontal-flip", "normalize"},
     [](const Facts& f) { return f.is(Kind::pictures); },
     "it is about pictures"},
    {{"in", "out"},
     [](const Facts& f) { return f.is(Kind::rows); },
     "it is about the model mlp on rows"},
    {{"batches"},
     [](const Facts& f) { return f.is(Layout::synthetic); },
     "it is about synthetic data; --steps ends a run of other data"},
    {{"input-scale"},
     [](const Facts& f) { return f.is(Layout::synthetic) && f.is(Kind::rows); },
     "it is about synthetic rows"},
    {{"image-size"},
     [](const Facts& f) {
       return f.is(Layout::picture_folder) || (f.is(Layout::synthetic) && f.is(Kind::pictures));
     },
     "it is about a folder's pictures and synthetic ones; others have their size"},
    {{"classes"},
     [](const Facts& f) { return f.is(Layout::synthetic) && f.is(Kind::pictures); },
     "it is about synthetic pictures; other data have their classes"},
    {{"data-dir"},
     [](const Facts& f) { return !f.is(Layout::synthetic); },
     "synthetic data are made in memory, and have no files"},
    {{"sync-batch-norm"},
     [](const Facts& f) { return f.config.ranks > 1; },
     "it is about several ranks (--ranks), and this run has one"},
    {{"test-limit"},
     [](const Facts& f) { return !f.is(Layout::synthetic); },
     "synthetic data have no test set"},
    {{"vocabulary-size"},
     [](const Facts& f) { return f.is(Kind::texts) || f.is(Layout::tokens); },
     "it is about texts with labels and token files"},
    {{"max-length"}, [](const Facts& f) { return f.is(Kind::texts); }, "it is about texts"},
    {{"tokenizer"}, [](const Facts& f) { return f.is(Layout::text); }, "it is about running texts"},
    {{"eval-every"},
     [](const Facts& f) { return f.is(Kind::tokens); },
     "it is about running texts and tokens; other data have an end"},
    {{"tokens-per-step"},
     [](const Facts& f) { return f.is(Kind::tokens) && reads_tokens(f.config); },
     "it is about the model gpt on running texts and tokens; --accumulate is about any network"},
    {{"momentum"},
     [](const Facts& f) {
       const OptimizerKind& kind = find_optimizer(f.config.optimizer);
       return kind.momentum_is_optional || kind.takes_matrices;
     },
     "it is about the optimizers sgd, rmsprop and muon; the others have moments of their own"},
    {{"muon-lr"},
     [](const Facts& f) { return find_optimizer(f.config.optimizer).takes_matrices; },
     "it is about the optimizer muon"},
    {{"nesterov"},
     [](const Facts& f) { return f.config.optimizer == "sgd"; },
     "it is about the optimizer sgd; muon has Nesterov's momentum, and --optimizer-options "
     "nesterov=0 turns it off"},
    {{"label-smoothing"},
     [](const Facts& f) { return f.config.loss == "cross-entropy"; },
     "it is about cross entropy"},
    {{"schedule-epochs"},
     [](const Facts& f) { return find_schedule(f.config.schedule).ends; },
     "a constant rate is made for no number of epochs"},
    {{"init-scale", "growth-factor", "backoff-factor", "growth-interval"},
     has_moving_scale,
     "no loss scale moves in this run; fp16 has one, or --loss-scale dynamic"},
    {{"op-policy", "fp32-part"},
     [](const Facts& f) { return has_region(f) || !f.config.what_if.empty(); },
     "it is about an autocast region, and this run has none; --precision bf16 or fp16 opens one"},
    {{"autocast"}, has_region, "--precision bf16 or fp16 opens an autocast region, others do not"},
};

// Whether the run does what a flag that is off turns on.
bool is_on_otherwise(const Config& config, std::string_view setting) {
  return setting == "nesterov" && find_optimizer(config.optimizer).takes_matrices;
}

// DEMI_DATA_DIR is the folder of data sets for every command.
bool asks(const Assignment& a) { return !a.is_of_file() && a.source != "DEMI_DATA_DIR"; }

}  // namespace

std::string why_without_effect(const Config& config, std::string_view setting) {
  const Facts facts{config, config.data.empty() ? data::DataSet() : data::data_set(config.data)};
  for (const Need& need : kNeeds)
    for (const std::string_view name : need.settings)
      if (name == setting && !need.is_met(facts)) return std::string(need.otherwise);
  return why_not_of_model(config, setting);
}

void check_effects(const Config& config, std::span<const Assignment> given) {
  for (const Assignment& a : given) {
    const Setting* setting = find_setting(a.name);
    if (!setting || !asks(a)) continue;
    const std::string off = setting->is_flag ? "false" : setting->get(Config());
    if (setting->get(config) == off && !is_on_otherwise(config, a.name)) continue;
    if (const std::string why = why_without_effect(config, a.name); !why.empty())
      throw UsageError({.where = a.source,
                        .what = "the setting does nothing in this run: " + why,
                        .seen = a.text,
                        .advice = "leave it out"});
  }
}

void leave_out_for_others(Config& recipe, std::span<const Assignment> given) {
  Config asked = recipe;
  for (const Assignment& a : given)
    if (a.name == "optimizer" || a.name == "schedule") set(asked, a.name, a.text, a.source);
  if (asked.optimizer != recipe.optimizer) {
    recipe.betas = recipe.optimizer_options = "";
    recipe.nesterov = false;
  }
  if (asked.optimizer != recipe.optimizer && find_optimizer(asked.optimizer).takes_matrices)
    recipe.momentum = 0;
  if (asked.schedule == recipe.schedule) return;
  const ScheduleKind& schedule = find_schedule(asked.schedule);
  if (!schedule.ends) recipe.schedule_epochs = 0;
  if (!schedule.ends || schedule.by_epoch) recipe.schedule_steps = 0;
  if (!schedule.has_least) recipe.min_lr = 0;
  if (schedule.has_warmup) recipe.warmup_epochs = 0;
  if (schedule.has_warmup) recipe.warmup_steps = 0;
}

}  // namespace demi::settings
