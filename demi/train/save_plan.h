#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>

#include "demi/checkpoint/writer.h"
#include "demi/train/checkpoint_options.h"

namespace demi::train {

/// When a run saves a checkpoint, and the thread that writes it.
class SavePlan {
 public:
  using Clock = std::chrono::steady_clock;

  /// `asked`: TrainerOptions::should_save, or an empty function. Holds the folder, if there is one,
  /// until it is destroyed. Throws what checkpoint::Writer throws.
  SavePlan(const CheckpointOptions& options, std::function<bool()> asked);

  /// Whether one is saved at all.
  bool is_on() const { return writer_ != nullptr; }
  bool keeps_best() const { return options_.keep_best; }
  const CheckpointOptions& options() const { return options_; }

  /// After a batch; `step_done`: it was the last of its step.
  bool is_due_after_batch(int64_t step, bool step_done);
  bool is_due_after_epoch(int64_t epoch) const;

  /// `step` names the folder.
  void save(int64_t step, checkpoint::Checkpoint state, bool is_best);

  /// Waits until everything is on the disk. Throws what writing it threw.
  void finish();

 private:
  CheckpointOptions options_;
  std::function<bool()> asked_;
  std::unique_ptr<checkpoint::Writer> writer_;
  Clock::time_point last_ = Clock::now();
};

}  // namespace demi::train
