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
  double share = 1;    // of one batch's targets: those that count
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

/// Forward and backward of one batch, whose sums are added to the window's.
void add_batch(const Setup& setup, loop::Step& step, UnreadStep& window, const data::Batch& batch,
               bool ends_step, int64_t epoch);

/// The gradients of all optimizers' parameters become so many times as large.
void scale_gradients(const Setup& setup, double factor);

}  // namespace demi::train
