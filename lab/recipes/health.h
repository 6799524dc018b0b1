#pragma once

#include <optional>
#include <string>
#include <vector>

#include "demi/core/export.h"
#include "demi/monitor/monitor.h"
#include "lab/recipes/compare.h"
#include "lab/report/event_file.h"
#include "lab/report/metrics_log.h"
#include "lab/report/page.h"

namespace demi::train {

/// The lines of metrics.jsonl about one step that the monitor looked at, two a layer: its weights'
/// gradients, its output's.
DEMI_API std::vector<report::MetricFields> health_lines(const std::string& run,
                                                        const monitor::StepHealth& step);

/// Histograms over log2 of the gradients' magnitudes, a bucket a power of two; shares as scalars.
DEMI_API void write_health(report::EventFile& file, const monitor::StepHealth& step);

/// The histogram of TensorBoard: values are the exponents. Zeros, Inf and NaN are left out.
DEMI_API report::Histogram over_exponents(const monitor::ExponentHistogram& counts);

/// Both histograms and the table by layer of each run that was monitored; none if there is no such
/// run.
DEMI_API std::optional<report::Section> health_section(const Comparison& comparison);

}  // namespace demi::train
