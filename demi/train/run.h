#pragma once

#include <c10/core/Device.h>

#include <cstdint>
#include <exception>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "demi/core/export.h"
#include "demi/train/config.h"
#include "demi/train/history.h"
#include "demi/train/precision.h"
#include "demi/train/workload.h"

namespace demi::train {

/// What a training run does beside training.
struct RunOptions {
  std::filesystem::path folder;       // where weights files go; empty: nothing is kept
  std::string prefix;                 // of their names: "fp16-"
  bool keep_best = false;             // best-model.safetensors, written when validation gets better
  bool per_class = false;             // test accuracy of each class
  std::function<bool()> should_stop;  // asked after each step
  std::vector<std::shared_ptr<Callback>> callbacks;
};

/// A run and what it came to: one row of the table.
struct RunResult {
  RunSpec spec;
  History history;
  double seconds = 0;                             // of training, all epochs
  double seconds_per_epoch = 0;                   // of training, mean over whole epochs
  double test_loss = 0;                           // of the shipped weights, in the run's precision
  std::optional<double> test_accuracy;            // likewise; none for a regression
  std::optional<double> test_accuracy_fp32_eval;  // of the weights as trained, evaluated in FP32
  std::vector<double> class_accuracy;             // likewise by class, if asked
  int64_t parameters = 0;
  int64_t peak_bytes = 0;           // of tensors while training
  int64_t peak_resident_bytes = 0;  // of the process while training
  int64_t model_bytes = 0;          // of the weights file that one would ship
  int64_t checkpoint_bytes = 0;     // of the file to go on training from
  int64_t skipped_steps = 0;
  double speedup = 0;  // the first run's seconds_per_epoch over this one's
};

/// Trains the config's model in the precision of `spec`, writes FOLDER/PREFIXmodel.safetensors
/// (what one would ship) and FOLDER/PREFIXlast.safetensors, and tests the file. Caches are emptied
/// and peaks reset before. Throws TrainingError where memory does not suffice, with the batch size
/// that would fit.
DEMI_API RunResult run(const Config& config, const RunSpec& spec, const Workload& workload,
                       c10::Device device, const RunOptions& options);

/// Whether the exception says that memory ran out, of a device or of the host.
DEMI_API bool is_out_of_memory(const std::exception& error);

/// The largest batch size whose training step fits in 80 % of the memory that is free on the
/// device, at most the number of training examples: found by trial steps of two sizes, from which
/// the rest is reckoned, and one trial of the result.
DEMI_API int64_t find_batch_size(const Config& config, const RunSpec& spec,
                                 const Workload& workload, c10::Device device);

}  // namespace demi::train
