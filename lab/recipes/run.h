#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "demi/core/export.h"
#include "demi/distributed/process_group.h"
#include "demi/monitor/monitor.h"
#include "demi/monitor/origin.h"
#include "demi/monitor/recipe_what_if.h"
#include "demi/monitor/what_if.h"
#include "demi/train/callback.h"
#include "demi/train/history.h"
#include "demi/train/names.h"
#include "lab/recipes/model_flops.h"
#include "lab/recipes/run_observer.h"
#include "lab/settings/resolved.h"
#include "lab/settings/run_spec.h"
#include "lab/workload/workload.h"

namespace demi::recipes {

/// The parts of a training run besides training: its files, its observers, its start.
struct JobOptions {
  std::filesystem::path folder = {};       // of the weights file; empty: nothing is kept
  std::string prefix = {};                 // of its name: "fp16-"
  std::filesystem::path checkpoints = {};  // folder of them; empty: none
  bool keep_best = false;                  // checkpoints/best: the state after the best epoch
  /// A thread writes checkpoints during training. Its memory and processor time count as the
  /// run's.
  bool save_in_background = false;
  bool per_class = false;  // test accuracy of each class
  /// Resumes the newest whole checkpoint in `checkpoints`, and sets damaged ones that are newer
  /// aside; from the beginning if there is none.
  bool resume = false;
  /// Resumes this checkpoint, which stays as it is. Empty: from the beginning.
  std::filesystem::path resume_from = {};
  /// The checkpoint or the file that Config::from means, as find_start finds it, so that several
  /// runs start from one. Empty: each looks for it.
  std::filesystem::path start_from = {};
  /// Number of the last steps that a checkpoint holds; for the others it holds what
  /// RunObserver::keep_steps returns. 0: it holds all.
  int64_t history_steps = 0;
  /// Watches the run and outlives it. Null: nobody does.
  RunObserver* observer = nullptr;
  /// Callbacks of the training, besides those of the run itself.
  std::vector<std::shared_ptr<train::Callback>> callbacks = {};
  /// The processes that train together, Config::ranks of them; each has JobOptions of its own.
  /// Files are those of rank 0, and results are totals over all. None: this process alone.
  std::shared_ptr<distributed::ProcessGroup> group = {};
};

/// A reason why a run is hardly faster than the first one, with the number that shows it.
struct SlowCause {
  std::string name;   // no_unit, idle, waits, short_kernels, dimensions or little_in_16_bits
  double number = 0;  // what `text` says of it: a share, a count, a ratio
  std::string text;   // for people, with what to do
};

/// A run and its results: one row of the table.
struct RunResult {
  settings::RunSpec spec;                         // precision, loss scale and label of the run
  train::History history;                         // its steps and epochs
  double seconds = 0;                             // of training, all epochs
  double seconds_per_epoch = 0;                   // of training, mean over whole epochs; foreseen
                                                  // from the examples seen if there is none
  std::optional<double> test_loss;                // of the shipped weights, in the run's precision
  std::optional<double> test_accuracy;            // likewise; none for a regression
  std::optional<double> test_accuracy_fp32_eval;  // of the weights as trained, evaluated in FP32
  int64_t top_k = 0;                              // of test_top_k_accuracy; 0: none
  std::optional<double> test_top_k_accuracy;      // of the shipped weights, as test_accuracy
  std::vector<double> class_accuracy;             // likewise by class, if asked
  int64_t parameters = 0;                         // of the network
  int64_t peak_bytes = 0;           // of tensors while training, the data set on the device apart
  std::string recipe_layers = {};   // which weights are quantized, in words; empty: none
  int64_t data_bytes = 0;           // of tensors on the device before the run: its data set
  int64_t peak_resident_bytes = 0;  // of the process while training
  int64_t model_bytes = 0;          // of the weights file that one would ship
  int64_t checkpoint_bytes = 0;     // of the folder that training resumes from
  int64_t skipped_steps = 0;        // that changed nothing
  /// Share of the requested cores that the run got while training (profile::cores_share); none: not
  /// known.
  std::optional<double> cores_share;
  int64_t involuntary_switches = 0;  // of all threads, while training
  std::string remark;                // a warning for people; mostly empty
  /// Steps that the monitor looked at, since this process began with the run.
  std::vector<monitor::StepHealth> health;
  /// Origins of Inf and NaN, likewise.
  std::vector<monitor::Origin> origins;
  /// The effect of 16 bits on the steps since then; none if the run did not ask (Config::what_if).
  std::optional<monitor::WhatIfResult> what_if;
  /// The effect of a recipe on them, if the run asked about one.
  std::optional<monitor::RecipeWhatIfResult> recipe_what_if;
  /// FOLDER/PREFIXop-policy-WHATIF.txt, if it cures something; empty: none was written.
  std::filesystem::path what_if_policy;
  std::optional<ModelFlops> flops;     // of a language model
  double speedup = 0;                  // the first run's seconds_per_epoch over this one's
  std::vector<SlowCause> slow_causes;  // of a minor speedup, the first in order first
};

/// Throws what apply_policy would throw for one of these runs, before any of them is trained, and
/// UsageError for settings that contradict a run.
DEMI_API void check_parts(std::span<const settings::Resolved> runs,
                          const workload::Workload& workload);

/// Trains the config's model in the precision of the run, saves checkpoints as the config says and
/// one at the end, writes FOLDER/PREFIXmodel.safetensors (the weights to ship), and tests that
/// file. If training ends in an exception, the last checkpoint holds the state after the last step.
/// A resumed run gives the bits of the unbroken one. Caches are emptied and peaks reset
/// before. Throws TrainingError if memory does not suffice, with the batch size that would fit;
/// DataError for a damaged checkpoint.
DEMI_API RunResult run(const settings::Resolved& run, const workload::Workload& workload,
                       const JobOptions& options);

}  // namespace demi::recipes
