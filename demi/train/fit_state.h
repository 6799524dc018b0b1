#pragma once

#include <torch/nn/module.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "demi/checkpoint/checkpoint.h"
#include "demi/loop/step.h"
#include "demi/train/progress.h"
#include "demi/train/save_plan.h"
#include "demi/train/setup.h"

namespace demi::train {

/// The point at which a fit resumes a run. The objects of the Setup are loaded already.
struct ResumePoint {
  Progress progress;
  checkpoint::NamedTensors gradients;  // of an open window, by parameter, as backward makes them
  /// Running statistics from before the open window.
  checkpoint::NamedTensors statistics = {};
  std::optional<std::uint64_t> rank_seed;  // of several ranks' random numbers
  std::function<void()> random;            // sets the random generators; empty: leaves them
};

/// Reads it, takes its gradients out of the checkpoint, and checks it against the setup. Throws
/// UsageError.
ResumePoint read_resume_point(checkpoint::Checkpoint& from, Setup& setup);

/// The parameters' gradients become those that were saved.
void set_gradients(const ResumePoint& resume_point, const Setup& setup);

/// The part of a step that an exception may interrupt.
enum class Stage { kBetweenBatches, kInBatch, kInUpdate };

/// Captures and saves the state of a fit, as checkpoints hold it. Ranks that share the optimizers'
/// states save together. All steps have to be in the history of `progress` before a state is
/// captured.
class FitState {
 public:
  /// `count_seconds` is called before a state is captured: it brings the times in `progress` up to
  /// that moment. Setup and progress outlive the object.
  FitState(Setup& setup, const Progress& progress, std::function<void()> count_seconds);

  /// Whether checkpoints are saved at all.
  bool is_on() const { return plan_.is_on(); }

  /// Several ranks draw random numbers by this seed, and a resumed run by the same.
  void set_rank_seed(std::uint64_t seed) { rank_seed_ = seed; }
  std::uint64_t rank_seed() const { return rank_seed_; }

  /// A step begins: if one of its batches is interrupted, it is repeated with the random numbers
  /// from here on.
  void begin_step();

  /// A step's batches are under way: what its Step keeps of running statistics. Null: no Step yet.
  void set_step(const loop::Step* step) { step_ = step; }

  /// The state is not the one that was saved last.
  void has_changed();

  /// Whether this rank asks the others to save after the step that it is about to take. Several
  /// ranks save after steps alone.
  bool asks_to_save();
  /// Sets whether the ranks have agreed to save.
  void agree_to_save(bool save) { save_is_agreed_ = save; }

  /// Whether a save is due. `epoch_done`: the batch was the last of its epoch. A save that is due
  /// then waits until the epoch is closed, with its test figures: one checkpoint, not two of the
  /// same step.
  bool is_due_after_batch(bool step_done, bool epoch_done);
  enum class Due : std::int64_t { kNo, kLast, kBest };
  Due due_after_epoch(std::int64_t epoch, bool is_best);  // the history has the epoch
  bool is_due_at_end();

  /// The state that was kept of a run that ended within an epoch; else the present one.
  checkpoint::Checkpoint checkpoint();

  void save(bool is_best);

  /// Keeps the state from before the epoch is closed, from which a run that ends within it resumes.
  void keep_open_epoch();
  bool is_kept() const { return kept_.has_value(); }

  /// A batch that was interrupted is repeated, with the whole step that it belongs to. An
  /// interrupted update is not saved, since it may have changed some of the weights. Nor is
  /// anything saved if the other ranks would have to send their share of the optimizers' states:
  /// the checkpoints from before remain.
  void save_after_exception(Stage stage);

  /// Waits until everything is on the disk. Throws what writing it threw.
  void finish() { plan_.finish(); }

  /// A sentence that names the last checkpoint, for ranks that have lost another one. Empty for one
  /// process, and without a folder.
  std::string last_checkpoint() const;

 private:
  void settle();
  checkpoint::Checkpoint captured();
  void add_texts(checkpoint::Metadata& text) const;
  checkpoint::SaveOptions how_to_save(bool is_best) const;
  bool is_among_best() const;
  std::int64_t of_saving_rank(std::int64_t number) const;

  Setup& setup_;
  const TrainerOptions& options_;
  const Progress& progress_;
  const std::function<void()> count_seconds_;
  SavePlan plan_;
  const loop::Step* step_ = nullptr;
  bool is_saved_ = false;        // the present state; a thread may still write it
  bool save_is_agreed_ = false;  // by several ranks
  bool is_due_ = false;          // since the epoch's last batch
  std::uint64_t rank_seed_ = 0;
  checkpoint::NamedTensors step_random_;        // states of the generators when the step began
  std::optional<checkpoint::Checkpoint> kept_;  // from before its epoch was closed
};

}  // namespace demi::train
