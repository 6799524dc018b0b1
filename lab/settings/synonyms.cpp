#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "demi/core/nearest.h"
#include "lab/settings/config.h"

namespace demi::settings {
namespace {

// Other programs' names of a setting.
constexpr std::pair<std::string_view, std::string_view> kSynonyms[] = {
    {"accumulate-grad-batches", "accumulate"},
    {"amp", "precision"},
    {"arch", "model"},
    {"augment", "horizontal-flip"},
    {"batch", "batch-size"},
    {"bs", "batch-size"},
    {"clip", "clip-norm"},
    {"data-path", "data-dir"},
    {"data-root", "data-dir"},
    {"dataset", "data"},
    {"decay", "weight-decay"},
    {"dtype", "precision"},
    {"ema-decay", "ema"},
    {"epoch", "epochs"},
    {"gpu", "device"},
    {"gpus", "devices"},
    {"grad-accum", "accumulate"},
    {"grad-clip", "clip-norm"},
    {"gradient-accumulation-steps", "accumulate"},
    {"total-batch-size", "tokens-per-step"},
    {"gradient-clip-val", "clip-norm"},
    {"half", "precision"},
    {"iterations", "steps"},
    {"learning-rate", "lr"},
    {"learning_rate", "lr"},
    {"max-epochs", "epochs"},
    {"max-grad-norm", "clip-norm"},
    {"max-steps", "steps"},
    {"num-epochs", "epochs"},
    {"num-workers", "workers"},
    {"patience", "early-stopping"},
    {"random-seed", "seed"},
    {"save-every", "checkpoint-every"},
    {"eta-min", "min-lr"},
    {"lr-decay-iters", "schedule-steps"},
    {"scheduler", "schedule"},
    {"smoothing", "label-smoothing"},
    {"warmup", "warmup-epochs"},
    {"warmup-iters", "warmup-steps"},
    {"wd", "weight-decay"},
};

}  // namespace

std::string setting_meant(std::string_view word) {
  for (const auto& [synonym, setting] : kSynonyms)
    if (synonym == word) return std::string(setting);
  std::vector<std::string> known;
  for (const Setting& setting : all_settings()) known.push_back(setting.name);
  return nearest(word, known);
}

std::string did_you_mean_setting(std::string_view word) {
  const std::string meant = setting_meant(word);
  return (meant.empty() ? "" : "did you mean " + meant + "? ") +
         "`demi train --help` lists the settings";
}

}  // namespace demi::settings
