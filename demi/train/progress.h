#pragma once

#include <cstdint>

#include "demi/checkpoint/checkpoint.h"
#include "demi/loop/recorder.h"
#include "demi/train/history.h"

namespace demi::train {

/// How a run's epochs are cut into batches and steps.
struct EpochShape {
  int64_t batches = 0, examples = 0, accumulate = 1;
  bool operator==(const EpochShape&) const = default;
};

/// Where a run stands, between two batches. With the objects that it trains this is all that the
/// rest of the run depends on.
struct Progress {
  int64_t epochs_begun = 0;
  int64_t position = 0;   // of the next batch in the epoch
  bool in_epoch = false;  // its end, with the validation, is still to come
  int64_t step = 0;       // taken so far
  /// Steps since the device was read because it was time to. A read for a checkpoint changes
  /// nothing of when the next one is.
  int64_t steps_since_read = 0;
  int64_t bad_steps_in_a_row = 0;
  StepMetrics first_bad;  // the first of these
  int64_t correct = 0;    // of the epoch's answers
  int64_t answers = 0;    // of the epoch, that count; of a loss without answers, its examples
  double loss_sum = 0;    // over these
  EpochRecord epoch;      // the present one, as far as it goes
  History history;
  /// The step whose batches are being accumulated, as it was when seconds were counted last.
  loop::Window window;
  EpochShape shape;

  /// The best validation so far; none without one.
  const Evaluation* best() const;
};

/// Writes everything but parameters' gradients: `numbers` "progress", `state` "history/..." and
/// "window/...". Whether training was stopped or failed is not part of it: it goes on. Of the
/// history's steps the last `most`; 0: all.
void write(const Progress& progress, checkpoint::Checkpoint& to, int64_t most = 0);

/// Reads it back. Throws UsageError if the checkpoint is not that of a Trainer, or holds numbers
/// that cannot be.
Progress read_progress(const checkpoint::Checkpoint& from);

}  // namespace demi::train
