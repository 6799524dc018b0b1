#pragma once

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "demi/core/export.h"
#include "demi/monitor/what_if.h"
#include "demi/train/names.h"
#include "lab/recipes/compare.h"
#include "lab/report/html_page.h"
#include "lab/report/metrics_log.h"
#include "lab/report/table.h"
#include "lab/settings/config.h"
#include "lab/settings/run_spec.h"

namespace demi::recipes {

/// Throws UsageError if Config::what_if is set and none of the runs is one that it can look at:
/// fp32 or tf32.
DEMI_API void check_what_if(const settings::Config& config,
                            std::span<const settings::RunSpec> runs);

/// Whether a run in this precision can be looked at.
DEMI_API bool can_be_asked(const Precision& precision);

/// The 16-bit run that Config::what_if of the run asks about: its parts in FP32, its op policy,
/// its loss scale.
DEMI_API monitor::WhatIfOptions what_if_options(const settings::Resolved& run);

/// A line of metrics.jsonl a tensor that would overflow, become 0 or lose digits somewhere.
DEMI_API std::vector<report::MetricFields> what_if_lines(const std::string& run,
                                                         const monitor::WhatIfResult& result);

/// A table for each run of the comparison that was asked: tensors that are harmed, the worst first,
/// with the cures as notes.
DEMI_API std::vector<report::Table> what_if_tables(const Comparison& comparison);

/// The line that trains with the policy, for each run that was asked and needs one: `line` of the
/// FP32 run, in the format and with the policy file.
DEMI_API std::vector<std::string> lines_with_policy(const Comparison& comparison,
                                                    const std::string& line);

/// Tables and lines in a page; none if no run was asked.
DEMI_API std::optional<report::Section> what_if_section(const Comparison& comparison,
                                                        const std::string& line);

}  // namespace demi::recipes
