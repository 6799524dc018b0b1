#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <optional>
#include <vector>

#include "demi/checkpoint/checkpoint.h"
#include "demi/data/loader.h"
#include "demi/loop/step.h"
#include "demi/profile/phase_timer.h"
#include "demi/train/divergence.h"
#include "demi/train/evaluate.h"
#include "demi/train/fit_checks.h"
#include "demi/train/fit_state.h"
#include "demi/train/progress.h"
#include "demi/train/setup.h"

namespace demi::train {

/// One fit: epochs of steps and validations. Setup and loaders outlive it.
class Fit {
 public:
  /// `resume_point`: none for a run from the start.
  Fit(Setup& setup, const data::Loader& training, const data::Loader* validation, int64_t epochs,
      std::optional<ResumePoint> resume_point);

  /// Trains for that many steps more, or to the end; whether it is not there yet.
  bool advance(int64_t steps);

  const History& history() const { return progress_.history; }

  /// Steps before those of the history.
  void add_earlier(std::vector<StepMetrics> steps);

  /// The state between the last batch and the next. If training ended within an epoch, the state
  /// from before that epoch was closed, so that a run can resume in it. If the ranks share the
  /// optimizers' states, all of them call it, and all but the first get an empty one.
  checkpoint::Checkpoint checkpoint();

 private:
  using Clock = std::chrono::steady_clock;

  void make_step();
  profile::PhaseTimer& timer() { return step_->phases(); }
  bool is_over() const;
  void begin();
  void end();
  void begin_epoch();
  void tell_epoch_begin();
  bool has_batch() const;
  void start_counting();
  void stop_counting();
  bool train_batch();
  loop::Sums train_next(bool ends_step);
  at::Tensor next_choice();
  void after_batch(bool step_done);
  void read_whole_epoch();
  bool ends_step() const;
  bool pass_without_batch();
  bool end_batch(bool steps);
  void take_step();
  void count_step();
  void on_update(const StepView& view);
  void agree_on_step();
  bool is_told_to_stop(bool step_done);
  void end_epoch();
  void warn_of_lost_mean();
  void close_epoch();
  void validate();
  void find_best_epoch();
  bool is_better(const EpochRecord& epoch, const Evaluation* best) const;
  void judge_early_stopping();
  void count_seconds();
  BadSteps bad_steps() const { return {progress_.bad_steps_in_a_row, progress_.first_bad}; }

  struct StepReport;
  class Relay;
  std::vector<StepReport> read_records();
  void report();
  void read();

  void save(bool is_best = false);
  void keep_open_epoch();
  void keep_after_exception(bool warns);

  Setup& setup_;
  const TrainerOptions& options_;
  const FitData data_;
  Progress progress_;
  std::optional<ResumePoint> resume_point_;  // until the first batch
  FitState state_;
  std::vector<std::shared_ptr<optim::lr::Scheduler>> schedules_;  // of the Step
  std::optional<loop::Step> step_;                                // from the first part on
  std::shared_ptr<Relay> relay_;                                  // of the Step
  std::optional<Evaluator> evaluator_;                            // from the first validation on
  /// This rank's batches in the open step, and the sum of their shares of targets that count; with
  /// several ranks.
  double batches_in_step_ = 0, shares_in_step_ = 0;
  Stage stage_ = Stage::kBetweenBatches;
  bool stop_is_agreed_ = false;  // with several ranks
  bool is_begun_ = false;
  bool ended_ = false;
  bool has_warned_ = false;
  bool is_counting_ = false;  // the seconds of the epoch
  /// Seconds of the epoch's phases before this object began to count.
  std::array<double, profile::kPhaseNames.size()> phases_before_{};
  Clock::time_point counted_;
};

}  // namespace demi::train
