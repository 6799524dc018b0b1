#pragma once

#include <chrono>
#include <cstdint>
#include <exception>
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

  /// Whether a save is due after a batch. `step_done`: the batch was the last of its step.
  bool is_due_after_batch(int64_t step, bool step_done);
  bool is_due_after_epoch(int64_t epoch) const;

  /// `step` names the folder; keep_last comes from the options. false: the system did not let it
  /// through; that is warned of, and another one will be due.
  bool save(int64_t step, checkpoint::Checkpoint state, checkpoint::SaveOptions how);

  /// Waits for the one that is under way. Whether the last one was saved. Throws why not if a save
  /// that fails ends training.
  bool is_written();

  /// Waits until everything is on the disk. Throws why the last one could not be saved.
  void finish();

 private:
  void write(checkpoint::Checkpoint state, const checkpoint::SaveOptions& how);
  void join();
  bool goes_on_after(const std::function<void()>& saving);
  Clock::time_point now() const { return options_.clock ? options_.clock() : Clock::now(); }

  CheckpointOptions options_;
  std::function<bool()> asked_;
  std::unique_ptr<checkpoint::Writer> writer_;
  Clock::time_point last_ = now();
  int64_t step_ = 0;            // of the last save
  bool is_pending_ = false;     // a thread writes it, or has written it
  std::exception_ptr failure_;  // since when none has succeeded; null: the last one did
  Clock::time_point failed_;
};

}  // namespace demi::train
