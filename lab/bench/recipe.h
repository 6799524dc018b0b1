#pragma once

#include <c10/core/Device.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "demi/core/export.h"
#include "lab/bench/progress.h"
#include "lab/recipes/machine.h"
#include "lab/settings/config.h"
#include "lab/settings/run_spec.h"
#include "lab/workload/workload.h"

namespace demi::bench {

/// `demi bench recipe`: the training step of a recipe in several precisions, all else equal.
struct RecipeBenchOptions {
  settings::Config config = {};  // the recipe's settings, for all runs
  /// Empty: the device's mixed precision. fp32 is always timed, too.
  std::vector<settings::RunSpec> runs;
  int warmup = 5;  // steps of each run, which are also checked; 2 or more
  int steps = 5;   // of each run in a round; 1 or more
  int rounds = 7;  // the runs take turns in each; 1 or more
  /// Records `steps` more of each run on a device, for RecipeTiming::of_device.
  bool records = true;
  /// Called once, when the data were read and before a step is taken; may be empty.
  std::function<void(const workload::Workload&)> before = {};
  OnPart on_part = {};  // told of the parts
};

/// What a device does for a step, by LibTorch's profiler. A step's kernels are those of a graph,
/// too.
struct DeviceWork {
  double kernels = 0;   // a step
  double launches = 0;  // a step: calls that start work; that of a graph is one
  double busy_ms = 0;   // a step: time in which it had work
  /// The share of RecipeTiming::ms in which it had none: what the host makes it wait. 0 to 1.
  double idle_share = 0;
};

/// A round's time over its steps, in milliseconds, of all rounds.
struct RecipeTiming {
  std::string precision;          // the run's label
  double ms = 0;                  // median
  double min_ms = 0, max_ms = 0;  // of the rounds
  double loss = 0;                // mean over the warm-up
  int64_t skipped_steps = 0;      // of all that were taken; a skipped step does less work
  double speedup = 1;             // median of fp32 over this one's
  /// Microseconds of the host from the beginning of a step on a device to that of the next one, in
  /// which it does not wait for the device, the least of all. None with one step a round.
  std::optional<double> host_us = {};
  std::optional<DeviceWork> of_device = {};  // on a device with a profiler
};

/// The results of `demi bench recipe`.
struct RecipeBenchResult {
  recipes::Machine machine;  // that it was measured on
  /// Parameters of the network, and examples of a step.
  int64_t parameters = 0, batch_size = 0;
  std::vector<RecipeTiming> runs;    // fp32 first
  std::vector<std::string> missing;  // what could not be measured, for people
};

/// Trains from equal initial weights on equal batches. First the warm-up steps of each run are
/// checked: all losses finite, the first one within 2 % of FP32's and their mean within 10 %;
/// throws TrainingError if they are not, and nothing is timed. A step is all that the Trainer
/// does, data included, up to a device that has finished; validation and files apart. On a device
/// each run is recorded after the rounds, if there is a profiler. Throws as
/// workload::load_workload, and UsageError for options out of range and a batch size of auto.
DEMI_API RecipeBenchResult bench_recipe(const RecipeBenchOptions& options, c10::Device device);

/// The check that bench_recipe makes of the losses of a warm-up, by step, before it times the run.
DEMI_API void check_losses(const std::string& run, const std::vector<double>& fp32,
                           const std::vector<double>& losses);

}  // namespace demi::bench
