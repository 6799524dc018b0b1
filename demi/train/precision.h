#pragma once

#include <c10/core/Device.h>
#include <c10/core/ScalarType.h>

#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "demi/core/export.h"

namespace demi::train {

/// In which formats a run keeps its weights and computes. "mixed" is FP32 weights with an autocast
/// region of a 16-bit format; "true" is weights and computation in the one format.
struct Precision {
  std::string_view name;                    // fp32, tf32, fp16, bf16, fp64, fp16-true, bf16-true
  c10::ScalarType weights;                  // of parameters and inputs
  std::optional<c10::ScalarType> autocast;  // the region's dtype; none: no region
  bool tf32;  // FP32 matrix products and convolutions may use tf32 (CUDA)
  bool is_mixed() const { return autocast.has_value(); }
  /// The 16-bit format of the weights file that one would ship, or FP32 / FP64.
  c10::ScalarType shipped() const { return autocast.value_or(weights); }
};

DEMI_API std::span<const Precision> precisions();

/// By name; PyTorch Lightning's names (32-true, 16-mixed, bf16-mixed, 16-true, 64-true, 32, ...)
/// are taken too. Throws UsageError with the nearest right name.
DEMI_API const Precision& parse_precision(std::string_view name);

/// What mixed precision means where nothing is said: fp16 on CUDA, bf16 elsewhere.
DEMI_API const Precision& mixed_precision_of(c10::DeviceType device);

/// The precision that demi::global_policy() stands for.
DEMI_API const Precision& global_precision();

/// How the loss is scaled before backward.
struct LossScale {
  enum class Kind { automatic, dynamic, statistics, fixed, off };
  Kind kind =
      Kind::automatic;  // automatic: dynamic where the autocast dtype is fp16, off otherwise
  double value = 0;     // for fixed: the factor
};

/// "auto", "dynamic", "statistics" (of the last steps' greatest gradients: ScaleMode::kAmax), "off"
/// or a positive number. Throws UsageError.
DEMI_API LossScale parse_loss_scale(std::string_view text);

/// One run of a comparison: a precision and, after colons, variants: `fp16:no-scaler`,
/// `fp16:scale=128`, `bf16:scaler`.
struct RunSpec {
  std::string label;  // as typed, Lightning's names replaced by ours; names the row, the curve and
                      // the files
  Precision precision;
  LossScale loss_scale;
};

/// Throws UsageError for an unknown precision or variant, naming the nearest right one.
DEMI_API RunSpec parse_run(std::string_view text);

}  // namespace demi::train
