#include "demi/scaler/saved_state.h"

#include <algorithm>
#include <limits>
#include <string>
#include <vector>

#include "demi/core/error.h"

namespace demi::scaler {
namespace {

constexpr auto kLoad = "scaler.load_state_dict";

double require_state(const StateDict& dict, const std::string& key, double greatest) {
  const double value = state_value(dict, key, kLoad);
  if (!(value >= 0 && value <= greatest))
    throw UsageError({.where = kLoad,
                      .what = key + " is out of range",
                      .seen = std::to_string(value),
                      .accepted = "0 or more"});
  return value;
}

int32_t count_in(const StateDict& dict, const char* key) {
  return static_cast<int32_t>(state_count(dict, key, kLoad, std::numeric_limits<int32_t>::max()));
}

std::vector<float> history_in(const StateDict& dict) {
  std::vector<float> history;
  for (std::string key = "_amax_history.0"; dict.contains(key);
       key = "_amax_history." + std::to_string(history.size()))
    history.push_back(
        static_cast<float>(require_state(dict, key, std::numeric_limits<float>::max())));
  return history;
}

}  // namespace

StateDict to_dict(const SavedState& saved) {
  const auto& [state, options] = saved;
  StateDict dict{{"scale", state.scale},
                 {"growth_factor", options.growth_factor},
                 {"backoff_factor", options.backoff_factor},
                 {"growth_interval", static_cast<double>(options.growth_interval)},
                 {"_growth_tracker", state.growth_tracker}};
  if (options.hysteresis > 1) dict["_hysteresis_tracker"] = state.hysteresis_tracker;
  for (size_t i = 0; i < state.amax_history.size(); ++i)
    dict["_amax_history." + std::to_string(i)] = state.amax_history[i];
  return dict;
}

SavedState from_dict(const StateDict& dict, SavedState present) {
  if (dict.empty())
    refuse({.where = kLoad,
            .what = "the source state dict is empty, possibly because it was saved from a disabled "
                    "instance "
                    "of GradScaler",
            .advice = "load it only where it was enabled, or start with a fresh scale"});
  auto& [state, options] = present;
  const double scale = state_value(dict, "scale", kLoad);
  options.growth_factor = state_value(dict, "growth_factor", kLoad);
  options.backoff_factor = state_value(dict, "backoff_factor", kLoad);
  options.growth_interval = count_in(dict, "growth_interval");
  state.growth_tracker = count_in(dict, "_growth_tracker");
  GradScalerOptions limits = options;
  limits.init_scale = scale;
  limits.min_scale = std::min(options.min_scale, scale);
  limits.max_scale = std::max(options.max_scale, scale);
  check(limits);
  if (dict.contains("_hysteresis_tracker"))
    state.hysteresis_tracker = count_in(dict, "_hysteresis_tracker");
  state.amax_history = history_in(dict);
  check(options);
  state.scale = static_cast<float>(scale);
  return present;
}

}  // namespace demi::scaler
