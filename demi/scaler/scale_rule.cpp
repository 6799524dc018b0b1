#include "demi/scaler/scale_rule.h"

#include <algorithm>
#include <cmath>
#include <string>

#include "demi/core/error.h"
#include "demi/kernels/inverse_scale.h"
#include "demi/scaler/kernel_rule.h"

namespace demi {
namespace {

constexpr double kGreatestFp16 = 65504.0;
constexpr double kGreatestFp32 = std::numeric_limits<float>::max();

void require(bool accepted, const char* option, double seen, const char* range) {
  if (accepted) return;
  throw UsageError({.where = "scaler.GradScaler",
                    .what = std::string(option) + " is out of range",
                    .seen = std::to_string(seen),
                    .accepted = range});
}

bool usable(float scale) {
  return kernels::is_usable(kernels::inverse_of_scale(scale));  // the inverse of Inf is 0
}

void follow(ScaleState& state, bool found_inf, const GradScalerOptions& options) {
  kernels::LossScale moved{state.scale, state.growth_tracker, state.hysteresis_tracker};
  kernels::advance(moved, kernel_rule(options), found_inf);
  state.scale = moved.scale;
  state.growth_tracker = moved.growth_tracker;
  state.hysteresis_tracker = moved.hysteresis_tracker;
}

void follow_amax(ScaleState& state, const ScaleInput& input, const GradScalerOptions& options) {
  auto& history = state.amax_history;
  const double overflowed = std::min<double>(kGreatestFp16 / state.scale, kGreatestFp32);
  history.push_back(input.found_inf ? static_cast<float>(overflowed) : input.amax);
  if (std::ssize(history) > options.amax_window)
    history.erase(history.begin(), history.end() - options.amax_window);
  const double greatest = *std::max_element(history.begin(), history.end());
  if (greatest == 0) return;
  int exponent = 0;  // limit / greatest = fraction x 2^exponent with fraction in [0.5, 1)
  const double fraction = std::frexp(options.amax_limit / greatest, &exponent);
  // "Under" the limit: where the quotient is a power of two itself, the next one below.
  state.scale =
      kernels::confined_scale(std::ldexp(1.0, fraction == 0.5 ? exponent - 2 : exponent - 1),
                              state.scale, options.min_scale, options.max_scale);
}

}  // namespace

void check(const GradScalerOptions& options) {
  const auto held = [](double scale) { return usable(static_cast<float>(scale)); };
  require(held(options.init_scale), "init_scale", options.init_scale,
          "a positive finite fp32 number");
  require(options.growth_factor > 1 && std::isfinite(options.growth_factor), "growth_factor",
          options.growth_factor, "above 1, finite");
  require(options.backoff_factor > 0 && options.backoff_factor < 1, "backoff_factor",
          options.backoff_factor, "between 0 and 1");
  require(options.growth_interval >= 1 &&
              options.growth_interval <= std::numeric_limits<int32_t>::max(),
          "growth_interval", static_cast<double>(options.growth_interval), "1 to 2147483647 steps");
  require(options.min_scale >= 0 && options.min_scale <= options.init_scale, "min_scale",
          options.min_scale, "0 to init_scale");
  require(options.max_scale >= options.init_scale, "max_scale", options.max_scale,
          "init_scale or more");
  require(options.hysteresis >= 1 && options.hysteresis <= std::numeric_limits<int32_t>::max(),
          "hysteresis", static_cast<double>(options.hysteresis), "1 overflow or more");
  require(options.amax_window >= 1, "amax_window", static_cast<double>(options.amax_window),
          "1 step or more");
  require(options.amax_limit > 0 && std::isfinite(options.amax_limit), "amax_limit",
          options.amax_limit, "a positive finite number");
  require(options.warn_after_skips >= 0, "warn_after_skips",
          static_cast<double>(options.warn_after_skips), "0 (never) or more steps");
}

ScaleState first_state(const GradScalerOptions& options) {
  return {.scale = static_cast<float>(options.init_scale),
          .growth_tracker = 0,
          .hysteresis_tracker = static_cast<int32_t>(options.hysteresis),
          .amax_history = {}};
}

ScaleState next_state(ScaleState state, const ScaleInput& input, const GradScalerOptions& options) {
  if (options.mode == ScaleMode::kAmax)
    follow_amax(state, input, options);
  else
    follow(state, input.found_inf, options);
  return state;
}

}  // namespace demi
