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
  /// `share`: as share_of().
  BatchInTraining(const Setup& setup, loop::Step& step, const data::Batch& batch, double share);

  at::Tensor forward();  // the output, or the network's own loss
  at::Tensor loss(const at::Tensor& output);
  std::vector<at::Tensor> losses();  // of TrainerOptions::losses

  /// The part of the sums of its step that a batch of so many examples has. `losses`: as the Step
  /// passes them.
  loop::Sums sums(const std::vector<at::Tensor>& losses, int64_t examples);
  /// What sums() is made of beside the losses, for a batch that may be replayed.
  loop::Step::Tensors parts() const { return {sums_.judged, sums_.correct, sums_.answers}; }
  void set_parts(const loop::Step::Tensors& parts) {
    sums_.judged = parts[0], sums_.correct = parts[1], sums_.answers = parts[2];
  }

 private:
  data::Batch input() const;
  void judge(const std::vector<at::Tensor>& losses);
  void penalise(at::Tensor& loss) const;

  const Setup& setup_;
  loop::Step& step_;
  const data::Batch& batch_;
  const double share_;
  const bool is_own_;  // the network computes the loss
  at::Tensor right_;   // by the network
  loop::Sums sums_;
  bool is_seen_ = false;
};

/// Share of the batch's targets that count; 1 unless there are several ranks.
double share_of(const Setup& setup, const data::Batch& batch);

/// Trains on a batch; `how.weight` is its share. Its tensors are handed to the Step, which may
/// replay it (Options::graph). Returns its part of the sums.
loop::Sums train_on(const Setup& setup, loop::Step& step, const data::Batch& batch,
                    const loop::MicroBatch& how);

/// Trains on a loader's choice (data::Loader): the step's work makes the batch of it.
loop::Sums train_on(const Setup& setup, loop::Step& step, const data::Loader& loader,
                    const at::Tensor& choice, const loop::MicroBatch& how);

/// The gradients of all optimizers' parameters become so many times as large.
void scale_gradients(const Setup& setup, double factor);

}  // namespace demi::train
