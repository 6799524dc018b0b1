#pragma once

#include <c10/core/Device.h>
#include <c10/core/ScalarType.h>

#include <optional>
#include <span>
#include <string_view>

#include "demi/core/export.h"

namespace demi {

/// The formats in which a run stores its weights and computes. Mixed: FP32 weights and an autocast
/// region of a 16-bit format. True: weights and computation in one format.
struct Precision {
  std::string_view
      name;  // fp32, tf32, fp16, bf16, fp64, fp16-true, bf16-true, or a recipe's: mxfp8
  c10::ScalarType weights;                  // of parameters and inputs
  std::optional<c10::ScalarType> autocast;  // the region's dtype; none: no region
  bool tf32;  // FP32 matrix products and convolutions may use tf32 (CUDA)
  /// What linear layers multiply in within the region (OpPolicy::of_recipe); empty: its dtype.
  std::string_view recipe = {};
  /// Whether it has a region: FP32 weights that are cast for the ops.
  bool is_mixed() const { return autocast.has_value(); }
  /// The dtype of the weights file that one would ship: 16 bits for a mixed run.
  c10::ScalarType shipped() const { return autocast.value_or(weights); }
};

/// All precisions.
DEMI_API std::span<const Precision> precisions();

/// The precision of that name. PyTorch Lightning's names (32-true, 16-mixed, bf16-mixed, 16-true,
/// 64-true, 32, ...) and Keras's (mixed_float16, ...) are known, too. Throws UsageError with the
/// nearest known name.
DEMI_API const Precision& parse_precision(std::string_view name);

/// The default mixed precision of a device: fp16 on CUDA, bf16 elsewhere.
DEMI_API const Precision& mixed_precision_of(c10::DeviceType device);

/// The precision that corresponds to demi::global_policy() now.
DEMI_API const Precision& global_precision();

/// The scaling of the loss before backward.
struct LossScale {
  /// automatic: dynamic if the autocast dtype is fp16, otherwise off. statistics: ScaleMode::kAmax.
  enum class Kind { automatic, dynamic, statistics, fixed, off };
  Kind kind = Kind::automatic;  // where the scale comes from
  double value = 0;             // the factor, for fixed
};

/// Reads "auto", "dynamic", "statistics", "off" or a positive number. Throws UsageError for other
/// text.
DEMI_API LossScale parse_loss_scale(std::string_view text);

}  // namespace demi
