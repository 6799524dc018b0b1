#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "demi/core/export.h"
#include "demi/core/state_dict.h"
#include "demi/train/history.h"
#include "lab/report/metrics_log.h"

namespace demi::recipes {

/// The lines of metrics.jsonl about a run's steps, from `first` to `last`. A checkpoint of a run
/// folder holds this and the last steps, in place of all of them.
struct StepLines {
  int64_t first = 1, last = 0;
  int64_t bytes = 0;      // of the lines together
  uint32_t checksum = 0;  // CRC-32C of the lines one after the other

  /// Counts the line of the next step.
  DEMI_API void add(std::string_view line, int64_t step);
  bool operator==(const StepLines&) const = default;

  /// The numbers that a checkpoint holds.
  DEMI_API StateDict to_numbers() const;
  /// Reads them back; nullopt if the checkpoint holds all steps. Throws UsageError for impossible
  /// numbers.
  DEMI_API static std::optional<StepLines> in_numbers(const StateDict& numbers);
};

/// The fields of a step's line.
report::MetricFields step_fields(const std::string& run, const train::StepMetrics& step);

/// Steps that a checkpoint does not hold, from a metrics file.
struct EarlierSteps {
  std::vector<train::StepMetrics> steps;  // in a row
  std::string wrong;  // why there are none: what was seen, and what the checkpoint says
};

/// The steps before `end` of the run whose lines are `recorded`. A file that is missing, or that
/// has no such lines any more, has none.
DEMI_API EarlierSteps read_earlier_steps(const std::filesystem::path& metrics,
                                         const StepLines& recorded, int64_t end);

}  // namespace demi::recipes
