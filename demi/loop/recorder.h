#pragma once

#include <ATen/core/Tensor.h>
#include <torch/optim/optimizer.h>

#include <chrono>
#include <cstdint>
#include <vector>

#include "demi/core/export.h"
#include "demi/loop/observer.h"
#include "demi/profile/phase_timer.h"
#include "demi/scaler/grad_scaler.h"
#include "demi/step/step_result.h"

namespace demi::loop {

/// Sums over a step's examples, each () on the device; undefined where there is nothing to sum.
struct Sums {
  at::Tensor loss;       // what is recorded
  at::Tensor judged;     // what a run is judged by, without gradient penalty; undefined: `loss`
  at::Tensor correct;    // right answers
  at::Tensor answers;    // that count; undefined: `examples`
  int64_t examples = 0;  // batches in a loop that does not count them

  DEMI_API void add(const Sums& batch);
};

/// Calls visit(name, sum) for each tensor.
template <class Any, class Visit>
void each_sum(Any& sums, const Visit& visit) {
  visit("loss", sums.loss);
  visit("judged", sums.judged);
  visit("correct", sums.correct);
  visit("answers", sums.answers);
}

/// The record of the step that is open.
struct Window {
  Sums sums;
  double seconds = 0, data_seconds = 0;  // until they were counted last
  /// Whether a batch has been added.
  bool is_open() const { return sums.loss.defined(); }
};

/// A step that was read from the device: its record, and the sums that it is made of.
struct ReadStep {
  StepMetrics metrics;
  double loss = 0, judged = 0, correct = 0, answers = 0;
  int64_t examples = 0;
};

/// Records a Step's steps until the host reads them from the device. A step is recorded if
/// something was added to its window, by the Step or by another object that counts more than it
/// does.
class DEMI_API Recorder {
 public:
  using Clock = std::chrono::steady_clock;

  /// `first`: whose learning rate is recorded. All outlive the object.
  Recorder(const profile::PhaseTimer& timer, const GradScaler& scaler,
           const torch::optim::Optimizer& first)
      : timer_(timer), scaler_(scaler), first_(first) {}

  Window& window() { return window_; }
  /// The window, with its seconds counted until now.
  const Window& window_until_now();

  /// Seconds count from now on.
  void start_clock();
  /// Excludes this time from the seconds of every step.
  void leave_out(Clock::duration time) { since_ += time; }

  /// The step that was open is taken. `known`: what the host knows of it.
  void close(const StepMetrics& known, const std::vector<StepResult>& results);
  /// The seconds until now are those of the step that was closed last.
  void count_seconds();

  int64_t unread() const { return std::ssize(unread_); }
  /// All steps that were closed and not read, in order. Waits for the device.
  std::vector<ReadStep> read();

 private:
  struct Unread {
    StepMetrics known;
    Sums sums;
    std::vector<StepResult> results;  // one an optimizer
  };
  template <class Record>
  void add_seconds(Record& to);
  std::vector<double> read_sums(at::Tensor Sums::*sum) const;
  std::vector<double> used_rates() const;

  const profile::PhaseTimer& timer_;
  const GradScaler& scaler_;
  const torch::optim::Optimizer& first_;
  Window window_;
  std::vector<Unread> unread_;
  Clock::time_point since_ = Clock::now();
  profile::PhaseTimer::Seconds waited_before_{0};  // for data, at `since_`
};

}  // namespace demi::loop
