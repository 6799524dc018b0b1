#include "lab/settings/part_of_run.h"

#include <initializer_list>

namespace demi::settings {
namespace {

struct Settings {
  Part part;
  std::initializer_list<std::string_view> names;
};

// The settings of all parts but the model.
const Settings kParts[] = {
    {Part::kPrecision, {"precision"}},
    {Part::kLossScale, {"loss-scale"}},
    {Part::kStep,
     {"limit",
      "overfit-batches",
      "cuda-graph",
      "crop-padding",
      "crop-area",
      "horizontal-flip",
      "recompute",
      "eval-every",
      "optimizer",
      "optimizer-options",
      "betas",
      "lr",
      "muon-lr",
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
      "init-scale",
      "growth-factor",
      "backoff-factor",
      "growth-interval",
      "autocast",
      "scaler",
      "moments",
      "weight-mode",
      "skip",
      "monitor",
      "detect-anomaly",
      "what-if"}},
    {Part::kLength, {"epochs", "steps", "early-stopping", "stop-after", "dry-run"}},
    {Part::kTest, {"test-limit", "test-batch-size", "top-k"}},
    {Part::kCheckpoints, {"checkpoint-every", "keep-last", "keep-every", "keep-best", "best-by"}},
    {Part::kStart, {"from", "from-state", "from-average", "resume"}},
    {Part::kRanks, {"ranks", "devices", "sync-batch-norm", "shard-optimizer"}}};

}  // namespace

Part part_of_run(std::string_view setting) {
  for (const Settings& part : kParts)
    for (const std::string_view name : part.names)
      if (name == setting) return part.part;
  return Part::kModel;
}

std::span<const std::string_view> settings_of(Part part) {
  for (const Settings& one : kParts)
    if (one.part == part) return one.names;
  return {};
}

std::set<std::string> beyond_steps() {
  std::set<std::string> names;
  for (const Settings& one : kParts)
    if (one.part != Part::kStep) names.insert(one.names.begin(), one.names.end());
  return names;
}

}  // namespace demi::settings
