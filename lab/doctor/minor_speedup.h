#pragma once

#include <string>
#include <vector>

#include "demi/core/export.h"
#include "lab/doctor/dimensions.h"
#include "lab/profiler/summary.h"
#include "lab/recipes/run.h"

namespace demi::doctor {

/// A dimension and how much of a step's FLOPs its products have.
struct WeighedDimension {
  Dimension dimension;
  double flops_share = 0;
};

/// What was measured of a run that is hardly faster than FP32.
struct SpeedupFacts {
  std::string dtype;         // "bf16"
  std::string no_unit;       // why its products have no units here; "": they have
  double product_gain = 0;   // the rate of a large product over FP32's; 0: not measured
  bool is_device = false;    // a GPU, which the host waits for
  bool is_profiled = false;  // the fields below are known
  profiler::Summary profile;
  std::vector<WeighedDimension> dimensions;  // no multiples of 8
};

/// From these shares and counts on something is a cause.
inline constexpr double kIdle = 0.2;        // of a step
inline constexpr double kWaits = 1;         // a step
inline constexpr double kShortTime = 0.25;  // of the kernels' time, if half of them are short
inline constexpr double kDimension = 0.01;  // of a step's FLOPs
inline constexpr double kLittleLow = 0.5;   // of the ops' time

/// Why the speedup is minor, in the order in which to look: no unit for the dtype, an idle device,
/// waits for numbers, kernels under 10 us, dimensions that are no multiples of 8; and if most of
/// the time is spent in other dtypes than the 16-bit one, that. Empty if it is none of them. A pure
/// function.
DEMI_API std::vector<recipes::SlowCause> causes_of(const SpeedupFacts& facts);

}  // namespace demi::doctor
