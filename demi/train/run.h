#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "demi/checkpoint/checkpoint.h"
#include "demi/data/loader.h"
#include "demi/profile/phase_timer.h"
#include "demi/train/progress.h"
#include "demi/train/save_plan.h"
#include "demi/train/setup.h"
#include "demi/train/training_step.h"

namespace demi::train {

/// Where a run begins that goes on from a checkpoint. The objects of the Setup are loaded already.
struct Beginning {
  Progress progress;
  checkpoint::NamedTensors gradients;  // of an open window, by parameter, as backward makes them
  std::optional<std::uint64_t> rank_seed;  // of several ranks' random numbers
  std::function<void()> random;            // sets the random generators; empty: leaves them
};

/// Reads it, takes its gradients out of the checkpoint, and checks it against the setup. Throws
/// UsageError.
Beginning read_beginning(checkpoint::Checkpoint& from, Setup& setup);

/// One fit: epochs of steps and validations. Setup and loaders outlive it.
class Run {
 public:
  /// `beginning`: null for a run from the start.
  Run(Setup& setup, const data::Loader& training, const data::Loader* validation, int64_t epochs,
      std::optional<Beginning> beginning);

  /// Trains for that many steps more, or to the end; whether it is not there yet.
  bool advance(int64_t steps);

  const History& history() const { return progress_.history; }

  /// The state between the last batch and the next; of a run that was ended within an epoch, from
  /// before that epoch was closed, so that it can go on. If the ranks share the optimizers' states,
  /// all of them call it, and those other than the first get nothing.
  checkpoint::Checkpoint checkpoint();

 private:
  using Clock = std::chrono::steady_clock;
  /// What an exception finds half done.
  enum class Stage { kBetweenBatches, kInBatch, kInUpdate };

  bool is_over() const;
  bool go_on(int64_t until);
  void begin();
  void begin_epoch();
  void tell_epoch_begin();
  bool train_epoch(int64_t until);
  bool train_batch();
  StepView view_of(const data::Batch& batch, bool ends_step);
  void take_step(const StepView& view);
  void require_same_on_ranks() const;
  void agree_on_step();
  bool is_due_after_batch(bool step_done);
  int64_t of_saving_rank(int64_t number) const;
  bool is_told_to_stop(bool step_done);
  void end_epoch();
  void close_epoch();
  void validate();
  void judge_early_stopping();
  void count_seconds();
  void count_window_seconds();

  struct Told;
  std::vector<Told> taken_from_device();
  void tell();
  void read();

  checkpoint::Checkpoint captured();
  void add_texts(checkpoint::Metadata& text) const;
  void save(bool is_best = false);
  void keep_open_epoch();
  void keep_after_exception();
  void save_after_exception();
  std::string last_checkpoint() const;

  Setup& setup_;
  const TrainerOptions& options_;
  const data::Loader& training_;
  const data::Loader* validation_;  // none: null
  const int64_t epochs_;
  Progress progress_;
  std::optional<Beginning> beginning_;  // until the first batch
  std::vector<UnreadStep> unread_;
  profile::PhaseTimer timer_;
  SavePlan saves_;
  Stage stage_ = Stage::kBetweenBatches;
  bool saved_ = false;           // the present state
  bool stop_is_agreed_ = false;  // with several ranks
  bool save_is_agreed_ = false;  // with several ranks that share the optimizers' states
  std::uint64_t rank_seed_ = 0;  // likewise, of their random numbers
  bool is_begun_ = false;
  bool ended_ = false;
  bool is_counting_ = false;  // the seconds of the epoch
  /// Of the epoch, before timer_ began to count.
  std::array<double, profile::kPhaseNames.size()> phases_before_{};
  Clock::time_point counted_, window_start_;
  profile::PhaseTimer::Seconds waited_before_{0};  // for data, when the window began
  checkpoint::NamedTensors window_random_;         // states of the generators when it began
  std::optional<checkpoint::Checkpoint> kept_;     // from before its epoch was closed
};

}  // namespace demi::train
