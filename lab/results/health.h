#pragma once

#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "demi/core/export.h"
#include "demi/monitor/monitor.h"
#include "lab/recipes/compare.h"
#include "lab/report/event_file.h"
#include "lab/report/html_page.h"
#include "lab/report/metrics_log.h"

namespace demi::results {

/// The lines of metrics.jsonl about one step that the monitor looked at, two a layer: its weights'
/// gradients, its output's.
DEMI_API std::vector<report::MetricFields> health_lines(const std::string& run,
                                                        const monitor::StepHealth& step);

/// The monitored steps in the lines of metrics.jsonl, by run and step.
struct HealthLines {
  std::map<std::string, std::vector<monitor::StepHealth>> of_run;
  /// The faults: "line 17 is no JSON object", "line 20 lacks counts".
  std::vector<std::string> left_out;
};

/// Reads them back, of damaged files the sound part. Throws DataError if the file is missing.
DEMI_API HealthLines read_health(const std::filesystem::path& metrics);

/// Adds the earlier steps of each resumed run of a comparison, as the file has them, and a note of
/// damaged lines.
DEMI_API void add_earlier_health(recipes::Comparison& comparison,
                                 const std::filesystem::path& metrics);

/// Histograms over log2 of the gradients' magnitudes, a bucket a power of two; shares as scalars.
DEMI_API void write_health(report::EventFile& file, const monitor::StepHealth& step);

/// The histogram of TensorBoard: values are the exponents. Zeros, Inf and NaN are left out.
DEMI_API report::Histogram over_exponents(const monitor::ExponentHistogram& counts);

/// Both histograms and the table by layer of each run that was monitored; none if there is no such
/// run.
DEMI_API std::optional<report::Section> health_section(const recipes::Comparison& comparison);

}  // namespace demi::results
