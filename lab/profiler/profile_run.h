#pragma once

#include <c10/core/Device.h>

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "demi/core/export.h"
#include "lab/profiler/recording.h"
#include "lab/profiler/summary.h"
#include "lab/recipes/machine.h"
#include "lab/settings/config.h"
#include "lab/settings/run_spec.h"
#include "lab/workload/workload.h"

namespace demi::profiler {

/// Options of `demi profile`.
struct ProfileOptions {
  settings::Config config = {};      // the recipe's settings, for all runs
  c10::Device device = c10::kCPU;    // that the steps run on
  std::int64_t warmup = 3;           // steps before; 1 or more
  std::int64_t steps = 5;            // recorded, and as many around them without; 1 or more
  bool kernel_names = true;          // on a CPU: one step more, for the logs of oneDNN and MKL
  std::filesystem::path trace = {};  // file of the trace; empty: none
  /// The ranges for a profiler of the system's, with which as many steps more are run; none: no
  /// such steps.
  std::optional<Ranges::Kind> ranges = {};
};

/// The steps of one precision.
struct RunProfile {
  std::string precision;   // the run's label
  Summary summary;         // what the steps did
  double plain_ms = 0;     // a step without the profiler, median
  double recorded_ms = 0;  // a step with it, median
  /// Pages of memory that were touched for the first time in a step, without and with the profiler:
  /// its records take memory between the blocks of tensors, which then come from elsewhere.
  double plain_faults = 0, recorded_faults = 0;
  std::int64_t graph_bytes = 0;  // that the graphs of the steps hold, beside plain steps' memory
  std::filesystem::path trace;   // that was written; empty: none
  std::vector<std::string> missing;  // what could not be measured, for people

  /// The profiler's cost: 0.02 is 2 % more time.
  double overhead() const {
    return plain_ms > 0 && recorded_ms > 0 ? recorded_ms / plain_ms - 1 : 0;
  }
};

/// Trains a run of the config a few steps, then as many again with the profiler on: those of the
/// Trainer, data included. A missing tool (a profiler, NVTX, oneDNN's log) is named in the result,
/// and the rest is measured. Throws UsageError for counts below 1, TrainingError as
/// Recording::save.
DEMI_API RunProfile profile_run(const ProfileOptions& options, const settings::RunSpec& run,
                                const workload::Workload& workload);

/// The results of `demi profile`.
struct Profile {
  std::string recipe;            // its name
  settings::Config config;       // the recipe's settings
  recipes::Machine machine;      // that it was measured on
  std::int64_t steps = 0;        // that were recorded, of each run
  std::vector<RunProfile> runs;  // in the order in which they were asked for
};

}  // namespace demi::profiler
