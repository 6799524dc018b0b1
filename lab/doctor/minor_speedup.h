#pragma once

#include <c10/core/Device.h>

#include <cstdint>
#include <string>
#include <vector>

#include "demi/core/export.h"
#include "lab/doctor/dimensions.h"
#include "lab/profiler/summary.h"
#include "lab/recipes/compare.h"
#include "lab/recipes/run.h"
#include "lab/settings/run_spec.h"
#include "lab/workload/workload.h"

namespace demi::doctor {

/// A dimension and how much of a step's FLOPs its products have.
struct WeighedDimension {
  Dimension dimension;     // the dimension
  double flops_share = 0;  // of the step's FLOPs, 0 to 1
};

/// The measurements of a run that is hardly faster than FP32.
struct SpeedupFacts {
  std::string dtype;          // "bf16"
  std::string no_unit;        // why its products have no units here; "": they have
  double product_gain = 0;    // the rate of a large product over FP32's; 0: not measured
  bool is_device = false;     // a GPU, which the host waits for
  bool is_profiled = false;   // the fields below are known
  profiler::Summary profile;  // of the profiled steps
  std::vector<WeighedDimension> dimensions;  // no multiples of 8
};

/// The least shares and counts that are a cause.
inline constexpr double kIdle = 0.2;        // of a step
inline constexpr double kWaits = 1;         // a step
inline constexpr double kShortTime = 0.25;  // of the kernels' time, if half of them are short
inline constexpr double kDimension = 0.01;  // of a step's FLOPs
inline constexpr double kLittleLow = 0.5;   // of the ops' time

/// Why the speedup is minor, in the order in which to look: no unit for the dtype, an idle device,
/// waits for numbers, kernels under 10 us, dimensions that are no multiples of 8, most of the time
/// spent in other dtypes than the 16-bit one. Empty if none of them is found. A pure function.
DEMI_API std::vector<recipes::SlowCause> causes_of(const SpeedupFacts& facts);

/// The 16-bit dtype in which the run computes, "bf16"; "" if it has none.
DEMI_API std::string low_dtype_of(const settings::RunSpec& run);

/// Measures what causes_of asks of that run of the config: a few of its training steps with the
/// profiler, a large product in both dtypes, the products of its network's dimensions.
DEMI_API SpeedupFacts facts_of(const settings::Config& config, const settings::RunSpec& run,
                               const workload::Workload& workload, c10::Device device,
                               std::int64_t steps);

/// Puts the causes into each 16-bit run whose speedup over a first run in FP32 is below
/// kMinorSpeedup; a run that was stopped or has failed has no speedup. Steps are as many as fit in
/// 10 s, 5 at most. If something cannot be measured, a note of the comparison names it.
DEMI_API void explain_speedups(recipes::Comparison& comparison, const workload::Workload& workload,
                               c10::Device device);

/// Whether explain_speedups would measure something.
DEMI_API bool has_minor_speedup(const recipes::Comparison& comparison);

}  // namespace demi::doctor
