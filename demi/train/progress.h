#pragma once

#include <cstdint>

#include "demi/checkpoint/checkpoint.h"
#include "demi/loop/recorder.h"
#include "demi/train/history.h"

namespace demi::train {

/// Batches and examples of an epoch, and batches of a step.
struct EpochShape {
  int64_t batches = 0, examples = 0, accumulate = 1;
  bool operator==(const EpochShape&) const = default;
};

/// The progress of a run, between two batches. The rest of the run depends on this and on the
/// objects that it trains, and on nothing else.
struct Progress {
  int64_t epochs_begun = 0;
  int64_t position = 0;   // of the next batch in the epoch
  bool in_epoch = false;  // its end, with the validation, is still to come
  int64_t step = 0;       // taken so far
  /// Steps since the device was last read on schedule. A read for a checkpoint does not change when
  /// the next one is due.
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
/// "window/...". Does not write whether training was stopped or failed, since the run resumes.
/// Writes the last `most` steps of the history; 0: all.
void write(const Progress& progress, checkpoint::Checkpoint& to, int64_t most = 0);

/// Reads it back. Throws UsageError if the checkpoint is not that of a Trainer, or holds impossible
/// numbers.
Progress read_progress(const checkpoint::Checkpoint& from);

}  // namespace demi::train
