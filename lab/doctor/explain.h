#pragma once

#include <c10/core/Device.h>

#include <cstdint>
#include <optional>
#include <string>

#include "demi/core/export.h"
#include "lab/doctor/minor_speedup.h"
#include "lab/recipes/compare.h"
#include "lab/recipes/run_spec.h"
#include "lab/recipes/workload.h"

namespace demi::doctor {

/// The 16-bit dtype in which the run computes, "bf16"; "" if it has none.
DEMI_API std::string low_dtype_of(const recipes::RunSpec& run);

/// Measures what causes_of asks of that run of the config: a few of its training steps with the
/// profiler, a large product in both dtypes, the products of its network's dimensions.
DEMI_API SpeedupFacts facts_of(const recipes::Config& config, const recipes::RunSpec& run,
                               const recipes::Workload& workload, c10::Device device,
                               std::int64_t steps);

/// Puts the causes into each 16-bit run whose speedup over a first run in FP32 is below
/// kMinorSpeedup; a run that was stopped or has failed has no speedup. Steps are as many as fit in
/// 10 s, 5 at most. If something cannot be measured, a note of the comparison says what.
DEMI_API void explain_speedups(recipes::Comparison& comparison, const recipes::Workload& workload,
                               c10::Device device);

/// Whether explain_speedups would measure something.
DEMI_API bool has_minor_speedup(const recipes::Comparison& comparison);

}  // namespace demi::doctor
