#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "demi/core/export.h"
#include "demi/train/history.h"
#include "demi/train/machine.h"
#include "demi/train/precision.h"
#include "demi/train/recipe.h"

namespace demi::train {

/// Everything that a comparison is told.
struct CompareOptions {
  Recipe recipe;
  std::vector<RunSpec> runs;  // in this order
  c10::Device device = c10::kCPU;
  uint64_t seed = 0;  // of initial weights, data order and augmentation, the same in every run
  std::filesystem::path folder;       // where weights files go; must exist
  std::function<bool()> should_stop;  // asked after each step
  std::vector<std::shared_ptr<Callback>> callbacks;
  std::function<void(const RunSpec&)> on_run_begin;
};

/// One row of the table.
struct RunResult {
  RunSpec spec;
  History history;
  double seconds = 0;                  // of training, all epochs
  double seconds_per_epoch = 0;        // of training, mean over whole epochs
  double test_loss = 0;                // of the shipped weights, in the run's precision
  double test_accuracy = 0;            // likewise
  double test_accuracy_fp32_eval = 0;  // of the weights as trained, evaluated in FP32
  int64_t peak_bytes = 0;              // of tensors while training
  int64_t peak_resident_bytes = 0;     // of the process while training
  int64_t model_bytes = 0;             // of the weights file that one would ship
  int64_t checkpoint_bytes = 0;        // of the file to go on training from
  int64_t skipped_steps = 0;
  double speedup = 0;  // the first run's seconds_per_epoch over this one's
};

struct Comparison {
  Recipe recipe;
  Machine machine;
  uint64_t seed = 0;
  int64_t training_examples = 0, test_examples = 0, steps_per_epoch = 0;
  std::vector<RunResult> runs;
  bool stopped = false;  // ended early; the last run is not whole
  std::vector<std::string> notes;
};

/// The runs that a comparison on this device makes where none are named: fp32 and the device's
/// mixed precision.
DEMI_API std::vector<RunSpec> default_runs(c10::Device device);

/// Trains one run after the other. Between runs caches are emptied, peaks reset, the device
/// synchronised.
DEMI_API Comparison compare(const CompareOptions& options, const RecipeData& data);

}  // namespace demi::train
