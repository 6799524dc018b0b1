#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "demi/data/loader.h"
#include "demi/loop/step.h"
#include "demi/step/step_result.h"
#include "demi/train/history.h"
#include "demi/train/names.h"
#include "demi/train/setup.h"

namespace demi::train {

/// Sums over a step's examples, each () on the device; undefined where there is nothing to sum.
struct StepSums {
  at::Tensor loss;     // what is recorded
  at::Tensor judged;   // what a run is judged by, without gradient penalty; undefined: `loss`
  at::Tensor correct;  // right answers
  at::Tensor answers;  // that count; undefined: each example does
};

/// Calls visit(name, sum) for each of them.
template <class Sums, class Visit>
void each_sum(Sums& sums, const Visit& visit) {
  visit("loss", sums.loss);
  visit("judged", sums.judged);
  visit("correct", sums.correct);
  visit("answers", sums.answers);
}

/// A step whose results the host has not read from the device.
struct UnreadStep {
  StepMetrics record;
  StepSums sums;
  std::vector<StepResult> results;  // one an optimizer
  int64_t examples = 0;

  /// Whether a batch has been added.
  bool is_open() const { return sums.loss.defined(); }
  /// With several ranks: of this one's batches, and of their targets the shares that count.
  double batches = 0, shares = 0;
};

/// By name, for observers.
std::vector<loop::NamedInput> inputs_of(const data::Batch& batch);

/// A batch's forward and losses, as a Step calls them, and the sums that the first of these calls
/// finds: an observer that repeats the batch changes nothing.
class BatchInTraining {
 public:
  BatchInTraining(const Setup& setup, loop::Step& step, const data::Batch& batch);

  at::Tensor forward();  // the output, or the network's own loss
  at::Tensor loss(const at::Tensor& output);
  std::vector<at::Tensor> losses();  // of TrainerOptions::losses

  /// With several ranks: of the targets, those that count.
  double share() const { return share_; }
  /// `losses`: as the Step gives them.
  void add_to(UnreadStep& window, const std::vector<at::Tensor>& losses);

 private:
  data::Batch input() const;
  void judge(const std::vector<at::Tensor>& losses);
  void penalise(at::Tensor& loss) const;

  const Setup& setup_;
  loop::Step& step_;
  const data::Batch& batch_;
  double share_ = 1;
  const bool is_own_;  // the network computes the loss
  at::Tensor right_;   // by the network
  StepSums sums_;
  bool is_seen_ = false;
};

/// The gradients of all optimizers' parameters become so many times as large.
void scale_gradients(const Setup& setup, double factor);

}  // namespace demi::train
