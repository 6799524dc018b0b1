#pragma once

#include <cstdint>
#include <limits>
#include <vector>

#include "demi/core/export.h"

namespace demi {

/// The rule by which the loss scale changes.
enum class ScaleMode {
  kDynamic,  // grows after a run of clean steps, backs off on Inf or NaN: PyTorch's rule
  kStatic,   // stays where it was set
  kAmax,     // follows the greatest gradient of the last steps
};

/// All options of a GradScaler. Names and defaults of the first five: torch.amp.GradScaler.
struct GradScalerOptions {
  /// First scale. Positive, finite in fp32.
  double init_scale = 65536.0;
  /// Multiplies the scale after growth_interval clean steps. Above 1.
  double growth_factor = 2.0;
  /// Multiplies the scale when a gradient is Inf or NaN. Between 0 and 1.
  double backoff_factor = 0.5;
  /// Clean steps in a row before the scale grows. 1: doubles on every clean step.
  int64_t growth_interval = 2000;
  /// false: scale, unscale_ and update do nothing, and step is the optimizer's.
  bool enabled = true;
  /// false: a step whose gradients hold Inf or NaN is taken, to see what that does; the scale moves
  /// as ever. A run without a scaler: optim::StepOptions::skip_nonfinite.
  bool skip_nonfinite = true;

  /// Floor of the scale. 0: as low as fp32 holds the scale and its reciprocal.
  double min_scale = 0.0;
  /// Ceiling of the scale. Inf: as high as fp32 holds the scale and its reciprocal.
  double max_scale = std::numeric_limits<double>::infinity();

  /// Overflows that are tolerated before the scale backs off. 1: the first one backs off.
  int64_t hysteresis = 1;
  /// true: a clean step forgives the overflows before it (DeepSpeed's consecutive_hysteresis).
  /// false: only growth does (Megatron, DeepSpeed's default).
  bool refill_hysteresis = false;
  /// The rule by which the scale moves.
  ScaleMode mode = ScaleMode::kDynamic;
  /// kAmax: number of steps whose gradients count.
  int64_t amax_window = 100;
  /// kAmax: the greatest scaled gradient stays below it. fp16's greatest number is 65,504; half of
  /// it leaves room to grow between two steps.
  double amax_limit = 65504.0 / 2;
  /// Warn once after that many skipped steps in a row. 0: never.
  int64_t warn_after_skips = 20;
  /// Computes StepResult::grad_norm for torch::optim optimizers too, at one more read of the
  /// gradients. demi's optimizers always have it.
  bool record_grad_norm = false;

  bool operator==(const GradScalerOptions&) const = default;
};

/// Throws UsageError for the first option that is out of its range.
DEMI_API void check(const GradScalerOptions& options);

/// State of the rule between steps.
struct ScaleState {
  float scale = 65536.0F;          // what losses are multiplied by
  int32_t growth_tracker = 0;      // clean steps since the scale last moved
  int32_t hysteresis_tracker = 1;  // overflows left before the scale backs off
  /// kAmax: greatest unscaled gradient of each step, newest last.
  std::vector<float> amax_history;

  bool operator==(const ScaleState&) const = default;
};

/// The findings of one step.
struct ScaleInput {
  bool found_inf = false;  // a gradient was Inf or NaN
  float amax = 0;          // kAmax: greatest magnitude among the unscaled gradients
};

/// The state before the first step.
DEMI_API ScaleState first_state(const GradScalerOptions& options);

/// The scale rule: a pure function. The default is bit for bit that of PyTorch
/// (aten/src/ATen/native/cuda/AmpKernels.cu, amp_update_scale_cuda_kernel: products in fp64,
/// rounded to fp32, no growth into infinity), with two differences: the tracker reaching *or
/// passing* the interval grows, so that a lowered interval cannot freeze it, and a scale whose
/// product or reciprocal is not a finite positive fp32 number stays where it is.
///
/// Hysteresis: Megatron-LM DynamicGradScaler, DeepSpeed DynamicLossScaler. Amax: the largest power
/// of two that keeps the greatest gradient of the window, scaled, under the limit. An overflow
/// counts as a gradient of 65,504 / scale, the least that can have overflowed fp16; a window of
/// zeros keeps the scale.
DEMI_API ScaleState next_state(ScaleState state, const ScaleInput& input,
                               const GradScalerOptions& options);

}  // namespace demi
