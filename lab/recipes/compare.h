#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "demi/core/export.h"
#include "demi/train/history.h"
#include "demi/train/names.h"
#include "lab/recipes/machine.h"
#include "lab/recipes/run.h"

namespace demi::recipes {

/// Options of a comparison.
struct CompareOptions {
  std::string recipe = {};                    // its name, for people
  settings::Config config = {};               // the settings of all runs
  std::vector<settings::Resolved> runs = {};  // of the config, one or more, in this order
  /// Options of each run. If there are several, the names of weights files begin with the run's
  /// name, and it has a folder of that name in `checkpoints`.
  JobOptions run = {};
  /// Optimizer steps after which the next run has its turn, so that another program that comes and
  /// goes meets all of them; 0: one run after the other. Weights, losses and metrics are the same.
  int64_t turn_steps = 0;
  /// ModelFlops::peak_per_second by run; empty: not measured.
  std::vector<double> peak_flop_per_second = {};
};

/// Below this share of the cores a run's time says more of the neighbours than of the run.
inline constexpr double kQuietShare = 0.9;

/// The speedup below which `demi compare` explains the cause.
inline constexpr double kMinorSpeedup = 1.2;

/// The results of `demi compare`.
struct Comparison {
  std::string recipe;       // its name, for people
  settings::Config config;  // the settings of all runs
  Machine machine;          // of the runs
  /// Examples of the data, and optimizer steps of a run's epoch.
  int64_t training_examples = 0, test_examples = 0, steps_per_epoch = 0;
  bool predicts_tokens = false;      // of a running text: exp(test loss) is the perplexity
  std::vector<std::string> classes;  // names, by number
  std::vector<RunResult> runs;       // in the order in which they were asked for
  int64_t turn_steps = 0;            // that runs took in turn; 0: one run after the other
  bool stopped = false;              // ended early; the last run is not whole
  std::vector<std::string> notes;    // for people, about the table
};

/// The runs that a comparison on this device makes if none are named: fp32 and the device's
/// mixed precision.
DEMI_API std::vector<settings::RunSpec> default_runs(c10::Device device);

/// Whether another program took so much of the cores that the run's speedup says little: its own
/// share is below kQuietShare, or that of the first run, which it is set against.
DEMI_API bool is_disturbed(const Comparison& comparison, const RunResult& run);

/// Trains one run after the other, or in turns, from the same initial weights and data order.
DEMI_API Comparison compare(const CompareOptions& options, const workload::Workload& workload);

}  // namespace demi::recipes
