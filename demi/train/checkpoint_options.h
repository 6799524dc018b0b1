#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <functional>

#include "demi/checkpoint/checkpoint.h"
#include "demi/train/every.h"

namespace demi::train {

/// The checkpoints that a Trainer keeps of its run.
struct CheckpointOptions {
  /// Holds the checkpoints, as checkpoint::save writes them; one run at a time. Empty: none are
  /// saved, whatever else is set.
  std::filesystem::path folder = {};
  /// The interval between saves. The last state is saved in any case: when training ends, is
  /// stopped, or is ended by an exception between two steps.
  Every every = {};
  /// Number of the last checkpoints that are kept. 0: all.
  int64_t keep_last = 1;
  /// The interval, in steps or epochs but not in minutes, between saves that stay until somebody
  /// removes them.
  Every keep_every = {};
  /// true: FOLDER/best names the checkpoint of the epoch with the best validation, which is kept
  /// beside the last.
  bool keep_best = false;
  /// Number of epochs with the best validations whose checkpoints keep_best keeps
  /// (TrainerOptions::best_by); >= 1.
  int64_t best_count = 1;
  /// true: a thread writes the files while training goes on; the step that saves waits for a copy
  /// in memory. false: it waits for the disk.
  bool in_background = true;
  /// A save that the system refuses (TrainingError: a full disk, a file server that is away) warns
  /// once, and training goes on. It is tried again after so many seconds, and whenever another one
  /// is due, with the state of that moment. The state that could not be saved is lost: if it was
  /// the best, FOLDER/best names the one before. fit() throws if the last state cannot be saved. 0:
  /// the first failed save ends training.
  double retry_seconds = 60;
  /// The clock of `every.minutes` and `retry_seconds`, read after each batch. Empty: steady_clock.
  std::function<std::chrono::steady_clock::time_point()> clock = {};
  /// Number of the last steps whose records a checkpoint has, for callers that keep the steps
  /// elsewhere (Trainer::Parts::add_earlier). 0: all in the history.
  int64_t history_steps = 0;
  /// Further texts of each checkpoint, such as the configuration of the run.
  checkpoint::Metadata text = {};
  /// The description of the model in its file, of any length (Checkpoint::model_text).
  checkpoint::Metadata model_text = {};
  /// Called with each checkpoint before it is saved: adds the caller's own state, and flushes the
  /// caller's records of its steps.
  std::function<void(checkpoint::Checkpoint&)> before_save = {};
};

}  // namespace demi::train
