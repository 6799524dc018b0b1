#pragma once

#include <string>
#include <string_view>

#include "demi/core/fuzz_target_testing.h"
#include "demi/core/memory_file_testing.h"
#include "lab/report/metrics_log.h"

namespace demi::report {

/// Reads a run's metrics.jsonl. Lines that were read can be written and read again.
inline void fuzz_metrics(std::string_view bytes) {
  std::string again;
  for (const MetricLine& line : read_metrics(MemoryFile(bytes).path()).lines)
    again += metrics_line(line.fields);
  read_metrics(MemoryFile(again).path());
}

inline constexpr FuzzTarget kFuzzTargets[] = {{"metrics", fuzz_metrics}};

}  // namespace demi::report
