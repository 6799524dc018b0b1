#pragma once

#include <cstdint>

#include "demi/kernels/host_device.h"
#include "demi/kernels/inverse_scale.h"

// The dynamic loss scale between two steps. scaler/scale_rule.h says what the rule is and where it
// comes from; these are its formulas, which the host and a CUDA kernel share.
namespace demi::kernels {

/// The numbers of GradScalerOptions that the rule reads, checked.
struct LossScaleRule {
  double growth_factor, backoff_factor;
  double min_scale, max_scale;
  std::int32_t growth_interval, hysteresis;
  bool refill_hysteresis;
  bool moves;  // false: the scale stays where it is
};

struct LossScale {
  float scale;
  std::int32_t growth_tracker, hysteresis_tracker;
};

/// One update on a device. Pointers are of its memory; `mirror` may be pinned memory of the host.
struct LossScaleUpdate {
  LossScaleRule rule;
  float* scale;
  std::int32_t* growth_tracker;
  std::int32_t* hysteresis_tracker;
  float* skips_in_a_row;
  float* skips;
  float* mirror;            // [3], written: skips in a row, scale, skips
  const float* found_inf;   // 0 or 1
  const float* above_norm;  // 0 or 1: a step was skipped for its norm; or null
};

namespace {

/// `wanted` between floor and ceiling, or `current` where FP32 cannot hold it or its reciprocal.
DEMI_HOST_DEVICE float confined_scale(double wanted, float current, double floor, double ceiling) {
  const double raised = wanted < floor ? floor : wanted;
  const auto next = static_cast<float>(raised > ceiling ? ceiling : raised);
  return is_usable(inverse_of_scale(next)) ? next : current;
}

DEMI_HOST_DEVICE void back_off(LossScale& state, const LossScaleRule& rule) {
  state.growth_tracker = 0;
  if (--state.hysteresis_tracker > 0) return;
  state.hysteresis_tracker = 0;
  state.scale = confined_scale(state.scale * rule.backoff_factor, state.scale, rule.min_scale,
                               rule.max_scale);
}

DEMI_HOST_DEVICE void grow(LossScale& state, const LossScaleRule& rule) {
  if (rule.refill_hysteresis) state.hysteresis_tracker = rule.hysteresis;
  if (++state.growth_tracker < rule.growth_interval) return;
  state.growth_tracker = 0;
  state.hysteresis_tracker = rule.hysteresis;
  state.scale =
      confined_scale(state.scale * rule.growth_factor, state.scale, rule.min_scale, rule.max_scale);
}

DEMI_HOST_DEVICE void advance(LossScale& state, const LossScaleRule& rule, bool found_inf) {
  if (!rule.moves) return;
  found_inf ? back_off(state, rule) : grow(state, rule);
}

/// Moves the scale and counts skips. A step that was skipped for its norm alone does neither.
DEMI_HOST_DEVICE void advance(const LossScaleUpdate& update) {
  const bool found = *update.found_inf != 0.0f;
  if (found || !update.above_norm || *update.above_norm == 0.0f) {
    LossScale state{*update.scale, *update.growth_tracker, *update.hysteresis_tracker};
    advance(state, update.rule, found);
    *update.scale = state.scale;
    *update.growth_tracker = state.growth_tracker;
    *update.hysteresis_tracker = state.hysteresis_tracker;
    *update.skips_in_a_row = found ? *update.skips_in_a_row + 1.0f : 0.0f;
    *update.skips += found ? 1.0f : 0.0f;
  }
  update.mirror[0] = *update.skips_in_a_row;
  update.mirror[1] = *update.scale;
  update.mirror[2] = *update.skips;
}

}  // namespace
}  // namespace demi::kernels
