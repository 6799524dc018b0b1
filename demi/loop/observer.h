#pragma once

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>
#include <torch/optim/optimizer.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "demi/autocast/op_policy.h"
#include "demi/core/export.h"
#include "demi/loop/precision.h"
#include "demi/scaler/grad_scaler.h"
#include "demi/step/step_result.h"

namespace demi::loop {

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
  /// Whether an optimizer changed nothing: the only one, or one of several.
  bool skipped = false;
  /// Whether it was skipped for the norm of its gradients (optim::StepOptions::skip_norm_above)
  /// alone.
  bool skipped_for_norm = false;
  /// The host's time since the end of the step before, including reads and callbacks.
  double seconds = 0;
  /// The part of `seconds` in which the host waited for data.
  double data_seconds = 0;
};

/// Options of a repeated batch.
struct RepeatOptions {
  bool autocast = true;  // false: in FP32
  bool scaler = true;    // false: the loss is not scaled
  /// fp16 or bf16: in a region of this format and policy in place of the run's.
  std::optional<c10::ScalarType> format = std::nullopt;
  /// The dtypes that ops run in, in the repeated pass.
  std::optional<OpPolicy> op_policy = std::nullopt;
  /// The factor of the loss in place of the run's.
  std::optional<double> loss_scale = std::nullopt;
  /// Called with the network's output, as StepObserver::after_forward.
  std::function<void(const at::Tensor& output)> after_forward = {};
  /// Called with each loss, scaled, before its backward.
  std::function<void(const at::Tensor& loss)> before_backward = {};
};

/// A tensor that a batch is made of, by what it is: "input", "target".
using NamedInput = std::pair<std::string, at::Tensor>;

/// A batch in training and what trains on it. Valid during the call.
struct StepView {
  int64_t epoch = 1, step = 1;  // that the batch belongs to
  /// The batch is this rank's first one in its step; a step that was dropped does not count.
  bool begins_step = true;
  bool ends_step = true;  // the optimizers step after this batch
  /// The model; of several models one module that has them as children, under their names.
  torch::nn::Module& module;
  const std::vector<torch::optim::Optimizer*>& optimizers;  // of the loop
  const GradScaler& scaler;                                 // a disabled one in a loop without
  const Precision& precision;                               // of the loop
  /// The tensors of the batch, on the run's device; empty in after_update.
  const std::vector<NamedInput>& inputs;
  /// The batch's loss, unscaled and without a graph; the sum of several. Undefined before forward.
  at::Tensor loss = {};
  /// The results of the optimizers' steps; in after_update alone.
  std::vector<StepResult> results = {};
  /// Forward and backward of the batch once more, from the present weights, buffers and random
  /// numbers; adds to the gradients. Returns the loss as above. The caller restores whatever must
  /// not change. Throws UsageError in after_update.
  std::function<at::Tensor(const RepeatOptions&)> repeat = {};

  /// The input of that name; undefined if there is none.
  at::Tensor input(std::string_view name) const {
    for (const NamedInput& one : inputs)
      if (one.first == name) return one.second;
    return {};
  }
  /// The gradient as the next step will use it: FP32 (FP64 of FP64 weights), without the loss
  /// scale, whatever `.grad` holds between backward and step. A tensor of its own; undefined
  /// without a gradient. One pass over it.
  DEMI_API at::Tensor gradient(const at::Tensor& parameter) const;
};

/// Observes the batches and steps of a loop. It is called in the training thread, in the order in
/// which observers were added, at once: before the forward of each batch; after it, with the output
/// on its graph, unless the losses were computed together with it; after the batch's backward, when
/// gradients are those of the step so far, still scaled; after the optimizers' step, when gradients
/// are gone. on_step is called for several steps in a row, in order, after the device was read. An
/// observer may compute the batch again (StepView::repeat).
class DEMI_API StepObserver {
 public:
  StepObserver() = default;
  StepObserver(const StepObserver&) = default;
  StepObserver& operator=(const StepObserver&) = default;
  virtual ~StepObserver();
  /// Whether it hears of the batches and the update of this step. A step that no observer needs may
  /// be replayed from a graph (Options::graph). Of a step that is replayed an observer hears by
  /// on_step alone. Asked before the step's first batch.
  virtual bool needs_step(int64_t /*step*/) { return true; }
  /// Called before the forward of each batch.
  virtual void before_forward(const StepView&) {}
  /// Called after it, unless the losses were computed together with it.
  virtual void after_forward(const StepView&, const at::Tensor& /*output*/) {}
  /// Called after the backward of each batch: gradients are those of the step so far, scaled.
  virtual void after_backward(const StepView&) {}
  /// Called after the optimizers' step: gradients are gone.
  virtual void after_update(const StepView&) {}
  /// `examples`: of the epoch so far; 0 in a loop that does not count them.
  virtual void on_step(const StepMetrics&, int64_t /*examples*/) {}
};

}  // namespace demi::loop
