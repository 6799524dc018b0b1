#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <variant>
#include <vector>

#include "demi/core/export.h"
#include "demi/kernels/step_table.h"

namespace demi::optim {

/// The gradient of a tensor, compared with the one that is held for it.
enum class Seen : std::uint8_t {
  kNone,       // the tensor has no gradient
  kUnchanged,  // the held one
  kWritten,    // the held one, written to by the program
  kOther,      // another one, or the held one made anew by backward, or none was held
};

/// The record of one tensor.
struct TensorRecord {
  bool has_gradient = false;
  bool held = false;                // the rest is for one gradient, and is forgotten with it
  bool measured = false;            // by the last measurement, and unchanged since
  bool factor = false;              // its gradient is multiplied by a factor of its own
  bool shown = false;               // the program has asked for the gradient as the step uses it
  float limit = kernels::kNoLimit;  // the gradient is clamped to [-limit, limit]

  bool operator==(const TensorRecord&) const = default;
};

/// Whether the gradient for which something was recorded is gone.
inline bool is_lost(const TensorRecord& record, Seen seen) {
  return record.held && (seen == Seen::kNone || seen == Seen::kOther);
}

/// The gradients that carry the recorded loss scale.
enum class Scaled : std::uint8_t { kNone, kAll, kNarrow };  // none: no scale; narrow: of 16 bits

/// Norm, greatest magnitude, and whether there is an Inf or NaN.
enum class Norm : std::uint8_t { kUnknown, kOutdated, kCurrent };

/// The gradients that the records are for.
enum class Scope : std::uint8_t {
  kAny,     // those that the step finds
  kHeld,    // as long as one of the held gradients is there
  kSealed,  // as long as no gradient is written to, replaced, or added to the held ones
};

/// The records for the next step of an optimizer, without the numbers themselves (the scale, the
/// norm, factors), which are tensors that a device may hold.
struct DEMI_API StepRecords {
  Scaled scaled = Scaled::kNone;
  Norm norm = Norm::kUnknown;
  Scope scope = Scope::kAny;
  float max_norm = kernels::kNoLimit;  // clip_grad_norm_ over all gradients
  bool factors = false;                // a tensor was given a factor or limit of its own
  bool flagged = false;                // a flag of the caller decides whether the step is skipped
  bool decided = false;                // whether the norm is above its limit, for this norm
  bool takes_nonfinite = false;        // the step is taken with Inf and NaN, whatever the flag says
  std::vector<TensorRecord> tensors;

  bool operator==(const StepRecords&) const = default;

  bool clips() const { return max_norm != kernels::kNoLimit; }
  bool holds() const { return scope != Scope::kAny; }
  bool any_gradient() const;
  bool any_limit() const;
  /// Whether a gradient, narrow (of 16 bits) or not, is `scale` times the true one.
  bool is_scaled(bool narrow) const {
    return scaled == Scaled::kAll || (narrow && scaled == Scaled::kNarrow);
  }
  /// Whether the step reads the gradients before it updates. `skip_nonfinite`: StepOptions'.
  bool checks(bool skip_nonfinite) const {
    return skip_nonfinite || scaled != Scaled::kNone || clips();
  }
  /// Whether the step is skipped if there is an Inf or NaN, or the flag says so.
  bool skips(bool skip_nonfinite) const {
    return !takes_nonfinite && (skip_nonfinite || scaled != Scaled::kNone || flagged);
  }
};

/// The program may have changed .grad since it was last looked at.
struct Looked {
  std::span<const Seen> seen;  // by tensor
};
/// The gradients carry a scale; `is_new`: another one than was recorded, or others carry it.
struct ScaleRecorded {
  Scaled scaled = Scaled::kAll;
  bool is_new = true;
};
/// Gradients that are not of 16 bits were divided by the scale, in place.
struct Unscaled {};
struct Measured {};
/// The present gradients are held.
struct Held {};
struct ClipRecorded {
  float max_norm;
};
struct FactorRecorded {
  std::span<const std::size_t> tensors;
};
struct LimitRecorded {
  std::span<const std::size_t> tensors;
  float limit;
};
struct Shown {
  std::size_t tensor;
};
struct FlagRecorded {
  bool is_defined = true;
};
/// Whether the norm of all optimizers that step together is above a limit.
struct NormDecided {};
struct NonfiniteAccepted {};
/// Scale, factors and limits were written into all gradients, which are FP32 now.
struct Applied {};
/// GradScaler::update() without a step.
struct InspectionEnded {
  std::span<const Seen> seen;  // by tensor
};
/// The tensors' order is another one: `from` is the earlier place of each, or -1.
struct Reordered {
  std::span<const std::ptrdiff_t> from;
};
/// The step was taken or skipped.
struct StepEnded {};

using Event = std::variant<Looked, ScaleRecorded, Unscaled, Measured, Held, ClipRecorded,
                           FactorRecorded, LimitRecorded, Shown, FlagRecorded, NormDecided,
                           NonfiniteAccepted, Applied, InspectionEnded, Reordered, StepEnded>;

/// The records after an event: a pure function. Its rules:
///
/// - What is recorded for a tensor is forgotten with its gradient. If all held gradients are gone,
///   everything is forgotten but what holds whatever the gradients are: the flag,
///   takes_nonfinite, and a scale that no gradient was divided by.
/// - A clip belongs to the gradients that it was measured on, as clip_grad_norm_ writes to these:
///   if they change, or their scale, it becomes a factor of each of them (`factors`, no max_norm).
/// - A norm is outdated once a gradient or the scale is another one, and what was decided by it is
///   forgotten.
DEMI_API StepRecords after(StepRecords records, const Event& event);

}  // namespace demi::optim
