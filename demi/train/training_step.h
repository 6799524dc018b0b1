#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "demi/data/loader.h"
#include "demi/loop/recorder.h"
#include "demi/loop/step.h"
#include "demi/train/setup.h"

namespace demi::train {

/// The batch's tensors by name, for observers.
std::vector<loop::NamedInput> inputs_of(const data::Batch& batch);

/// A batch's forward and losses, as a Step calls them, and the sums that the first of these calls
/// finds: an observer that repeats the batch changes nothing.
class BatchInTraining {
 public:
  BatchInTraining(const Setup& setup, loop::Step& step, const data::Batch& batch);

  at::Tensor forward();  // the output, or the network's own loss
  at::Tensor loss(const at::Tensor& output);
  std::vector<at::Tensor> losses();  // of TrainerOptions::losses

  /// Share of the batch's targets that count; 1 unless there are several ranks.
  double share() const { return share_; }
  /// The batch's part of the sums of its step. `losses`: as the Step passes them.
  loop::Sums sums(const std::vector<at::Tensor>& losses);

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
  loop::Sums sums_;
  bool is_seen_ = false;
};

/// The gradients of all optimizers' parameters become so many times as large.
void scale_gradients(const Setup& setup, double factor);

}  // namespace demi::train
