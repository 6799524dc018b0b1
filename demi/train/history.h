#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <cmath>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "demi/profile/phase_timer.h"

namespace demi::train {

/// One optimizer step.
struct StepMetrics {
  int64_t epoch = 1;               // from 1
  int64_t step = 0;                // of the whole run, from 1
  double loss = 0;                 // mean over the batch; may be NaN or Inf
  std::optional<double> accuracy;  // of the batch, 0 to 1
  double learning_rate = 0;        // of the first parameter group, used in this step
  /// Factor of this step's loss; none without a scaler.
  std::optional<double> loss_scale;
  /// L2 norm of all gradients, unscaled and before clipping; NaN or Inf if they hold one. None if
  /// no pass computed it: torch::optim optimizers without GradScalerOptions::record_grad_norm.
  std::optional<double> grad_norm;
  /// The gradients held an Inf or NaN, and nothing was changed.
  bool skipped = false;
  /// The host's time since the end of the step before, including reads and callbacks.
  double seconds = 0;
  /// The part of `seconds` in which the host waited for data.
  double data_seconds = 0;
};

/// Results of one evaluation.
struct Evaluation {
  double loss = 0;                                      // mean over all examples
  std::optional<double> accuracy;                       // 0 to 1
  std::vector<std::pair<std::string, double>> metrics;  // by name; means over all examples
  /// 0 to 1 by class, NaN for a class without examples. Empty unless asked for.
  std::vector<double> class_accuracy;
  int64_t examples = 0;
  double seconds = 0;
  /// The caller ended it early: the results are those of a part of the examples.
  bool stopped = false;

  /// Whether this result is better than the other: by accuracy if both have one, else by loss. A
  /// result whose loss is NaN is never better, and every other result is better than it.
  bool better_than(const Evaluation& other) const {
    if (std::isnan(loss) || std::isnan(other.loss)) return !std::isnan(loss);
    return accuracy && other.accuracy ? *accuracy > *other.accuracy : loss < other.loss;
  }
};

/// One pass over the training data.
struct EpochRecord {
  int64_t epoch = 1;
  int64_t examples = 0;
  double loss = 0;                 // mean over the epoch's examples, each at its own step
  std::optional<double> accuracy;  // likewise, 0 to 1
  double seconds = 0;              // of training, without evaluation
  /// `seconds` by phase, in the order of kPhaseNames.
  std::array<double, profile::kPhaseNames.size()> phase_seconds{};
  std::optional<Evaluation> validation;
};

/// Everything that a fit recorded.
struct History {
  std::vector<StepMetrics> steps;
  std::vector<EpochRecord> epochs;
  int64_t skipped_steps = 0;
  bool stopped = false;               // the caller ended training early
  std::optional<int64_t> best_epoch;  // by validation; none without validation
  bool early_stopped = false;         // no better validation for early_stopping epochs
  /// Why the result is worthless: the loss stayed NaN or Inf, or ended so. None if training
  /// succeeded.
  std::optional<std::string> failed;
  /// Training time of all epochs.
  double seconds() const {
    double sum = 0;
    for (const EpochRecord& epoch : epochs) sum += epoch.seconds;
    return sum;
  }
};

struct StepView;

/// Is called in the training thread when something happens in a run. on_step is called for several
/// steps in a row, in order, after the device was read (TrainerOptions::read_every). The four hooks
/// that get a StepView (step_view.h) are called at the moment itself: before the forward of each
/// batch; after it, with the network's output on its graph, unless TrainerOptions::losses computes
/// output and loss together; after the batch's backward, when gradients are those of the step so
/// far, still scaled; and after the optimizers' step, when gradients are gone.
class Callback {
 public:
  virtual ~Callback() = default;
  virtual void on_epoch_begin(int64_t /*epoch*/, int64_t /*epochs*/, int64_t /*steps*/) {}
  virtual void before_forward(const StepView&) {}
  virtual void after_forward(const StepView&, const at::Tensor& /*output*/) {}
  virtual void after_backward(const StepView&) {}
  virtual void after_update(const StepView&) {}
  virtual void on_step(const StepMetrics&, int64_t /*examples_so_far_in_epoch*/) {}
  virtual void on_evaluate_begin(int64_t /*epoch*/) {}
  virtual void on_epoch_end(const EpochRecord&) {}
};

}  // namespace demi::train
