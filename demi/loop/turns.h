#pragma once

#include <torch/optim/optimizer.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "demi/loop/step.h"

namespace demi::loop {

/// What the step that has begun has done so far, by optimizer: which had a batch, and which were
/// taken. Optimizers that are taken one after the other have turns, as those of a GAN. Numbers are
/// places in Job::optimizers.
class Turns {
 public:
  /// `accumulate`: of Options. The optimizers outlive it.
  Turns(const std::vector<torch::optim::Optimizer*>& optimizers, std::int64_t accumulate);

  /// Throws UsageError for an optimizer that is none of these.
  std::size_t number_of(const torch::optim::Optimizer& one) const;

  /// Throws UsageError for a batch of an optimizer that was taken, or is none of these.
  void check(const MicroBatch& batch) const;
  /// Whether the batch gives gradients to some optimizers alone.
  bool is_of_some(const MicroBatch& batch) const { return !batch.of.empty() || is_any_taken(); }
  /// The optimizers whose parameters get gradients from it.
  std::vector<torch::optim::Optimizer*> receivers(const MicroBatch& batch) const;
  /// Whether it is the last of the step, or of the turn of MicroBatch::of.
  bool ends(const MicroBatch& batch) const;
  /// `ends`: as ends() has said. `is_own`: false if other ranks alone have the batch.
  void count(const MicroBatch& batch, bool ends, bool is_own);

  /// Whether any optimizer had a batch.
  bool had_batch() const;
  /// Whether this one had one of this rank.
  bool had_own_batch(std::size_t number) const { return had_own_[number]; }
  /// Whether any had one of this rank.
  bool had_own_batch() const;
  /// The optimizers that had a batch and were not taken, in order.
  std::vector<std::size_t> waiting() const;
  /// Whether the batches of a step are there.
  bool is_due() const { return is_due_; }
  void set_due() { is_due_ = true; }

  /// Both throw UsageError.
  void require_not_taken(std::size_t number) const;
  void require_batch(std::size_t number) const;
  /// It is taken, which ends its turn.
  void take(std::size_t number, const StepResult& result);
  bool is_any_taken() const;
  /// None if it was not taken.
  const std::optional<StepResult>& result_of(std::size_t number) const { return taken_[number]; }
  /// Results of the optimizers that were taken, in order.
  std::vector<StepResult> results() const;

  /// The step is over.
  void forget();
  /// A step has begun, and all optimizers had so many batches of it, without MicroBatch::of.
  void reopen(std::int64_t batches);

 private:
  std::vector<torch::optim::Optimizer*> optimizers_;
  std::int64_t accumulate_;
  // One entry an optimizer.
  std::vector<std::optional<StepResult>> taken_;
  std::vector<bool> had_batch_, had_own_;  // had_own_: one of this rank
  std::int64_t batches_of_turn_ = 0;       // of those with MicroBatch::of, since the last take()
  std::int64_t batches_of_all_ = 0;        // of those without, in the step
  bool is_due_ = false;
};

}  // namespace demi::loop
