#pragma once

#include <c10/core/ScalarType.h>

#include <algorithm>
#include <optional>

#include "demi/autocast/op_policy.h"
#include "demi/loop/observer.h"
#include "demi/monitor/origin.h"
#include "demi/monitor/range_trace.h"
#include "demi/monitor/repeated_batch.h"

namespace demi::monitor {

/// Repeats batches of an FP32 run as a run of the format would compute them, from the same weights:
/// what rounding does to an op that is not finite everywhere, such as a logarithm near 0, is found
/// by running the op itself. The run continues as without.
class RegionTrial {
 public:
  RegionTrial(c10::ScalarType format, TracedScale scale) : format_(format), scale_(scale) {}

  /// Keeps what a repeated batch changes.
  void before_forward(const loop::StepView& view);
  /// Forward and backward in the region, for an observer; what an op throws there is ignored.
  void run(const loop::StepView& view, const OpPolicy& policy);
  /// Whether loss and gradients are finite in a region of the policy, with its parts in FP32. A
  /// dynamic scale is halved until they are, but not below 1, and stays there.
  bool is_finite(const loop::StepView& view, const OpPolicy& policy);
  /// The origin of Inf or NaN if loss or gradients are not finite there.
  std::optional<Origin> find(const loop::StepView& view, const OpPolicy& policy);
  /// A dynamic scale begins the next batch with no more than this.
  void limit_scale(double scale) { scale_.begin = std::min(scale_.begin, scale); }

 private:
  bool is_finite(const loop::StepView& view, const OpPolicy& policy, double scale);
  loop::RepeatOptions how(const OpPolicy& policy, double scale) const;

  const c10::ScalarType format_;
  TracedScale scale_;
  std::optional<Surroundings> before_;
};

}  // namespace demi::monitor
