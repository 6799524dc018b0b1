#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <functional>

#include "demi/checkpoint/checkpoint.h"
#include "demi/train/every.h"

namespace demi::train {

/// Which checkpoints a Trainer keeps of its run, and where.
struct CheckpointOptions {
  /// Holds the checkpoints, as checkpoint::save writes them; one run at a time. Empty: none are
  /// saved, whatever else is set.
  std::filesystem::path folder = {};
  /// How often one is saved. In any case the last state is: when training ends, is stopped, or is
  /// ended by an exception between two steps.
  Every every = {};
  /// How many of the last are kept. 0: all.
  int64_t keep_last = 1;
  /// One is saved every so many steps or epochs that stays until somebody removes it. Minutes are
  /// none of its measures.
  Every keep_every = {};
  /// true: FOLDER/best names the checkpoint of the epoch with the best validation, which is kept
  /// beside the last.
  bool keep_best = false;
  /// With keep_best: how many epochs with the best validations keep their checkpoints
  /// (TrainerOptions::best_by). 1 or more.
  int64_t best_count = 1;
  /// true: a thread writes the files while training goes on; the step that saves waits for a copy
  /// in memory. false: it waits for the disk.
  bool in_background = true;
  /// A save that the system does not let through (TrainingError: a full disk, a file server that is
  /// away) warns once, and training goes on. It is tried again after so many seconds, and whenever
  /// one is due; what is saved then is the state of that moment, and the one that could not be
  /// saved is gone: if it was the best, FOLDER/best names the one before. fit() throws if the last
  /// state cannot be saved. 0: the first such save ends it.
  double retry_seconds = 60;
  /// The clock of `every.minutes` and `retry_seconds`, read after each batch. Empty: steady_clock.
  std::function<std::chrono::steady_clock::time_point()> clock = {};
  /// A checkpoint has the records of so many of the last steps, for callers that keep the steps
  /// elsewhere (Trainer::Parts::add_earlier). 0: of all in the history.
  int64_t history_steps = 0;
  /// Further texts of each checkpoint, such as the configuration of the run.
  checkpoint::Metadata text = {};
  /// What the model's file says of the model, of any length (Checkpoint::model_text).
  checkpoint::Metadata model_text = {};
  /// Called with each checkpoint before it is saved: adds what the caller keeps beside the state,
  /// and flushes what was told of its steps.
  std::function<void(checkpoint::Checkpoint&)> before_save = {};
};

}  // namespace demi::train
