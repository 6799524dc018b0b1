#pragma once

#include "demi/kernels/loss_scale.h"
#include "demi/scaler/scale_rule.h"

namespace demi {

/// The rule of kDynamic and kStatic as the kernels take it.
inline kernels::LossScaleRule kernel_rule(const GradScalerOptions& options) {
  return {.growth_factor = options.growth_factor,
          .backoff_factor = options.backoff_factor,
          .min_scale = options.min_scale,
          .max_scale = options.max_scale,
          .growth_interval = static_cast<int32_t>(options.growth_interval),
          .hysteresis = static_cast<int32_t>(options.hysteresis),
          .refill_hysteresis = options.refill_hysteresis,
          .moves = options.mode == ScaleMode::kDynamic};
}

}  // namespace demi
