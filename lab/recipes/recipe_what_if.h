#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "demi/core/export.h"
#include "demi/monitor/recipe_what_if.h"
#include "lab/recipes/run.h"
#include "lab/report/metrics_log.h"
#include "lab/report/table.h"
#include "lab/settings/resolved.h"

namespace demi::recipes {

/// The run in a recipe that Config::what_if of the run asks about: its parts in FP32, its op
/// policy. At most twenty batches are tried, over the whole run. `batches`: of an epoch.
DEMI_API monitor::RecipeWhatIfOptions recipe_what_if_options(const settings::Resolved& run,
                                                             int64_t batches);

/// A line of metrics.jsonl a layer.
DEMI_API std::vector<report::MetricFields> recipe_what_if_lines(
    const std::string& run, const monitor::RecipeWhatIfResult& result);

/// The layers, the most harmed first, with the policy and the time that it took as notes.
DEMI_API report::Table recipe_what_if_table(const RunResult& run);

/// Whether a run in the recipe needs the policy, and can train with it.
DEMI_API bool needs_policy(const monitor::RecipeWhatIfResult& result);

}  // namespace demi::recipes
