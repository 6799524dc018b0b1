#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Stream.h>

#include <optional>

#include "demi/core/export.h"

namespace torch::optim {
class Optimizer;
}

namespace demi {

/// Why a step changed nothing.
enum class SkipReason {
  kNone,       // it was taken
  kNonfinite,  // the gradients held an Inf or NaN, or the scale was out of range
  kNorm,       // their norm was above StepOptions::skip_norm_above
};

/// The result of one optimizer step. If the device decided (is_on_device()), each of skipped(),
/// reason(), grad_norm() and scale() waits for it and reads the numbers; otherwise they cost
/// nothing.
class DEMI_API StepResult {
 public:
  /// found_inf: 1 if the step was skipped; above_norm: 1 if it was for its norm. NaN in grad_norm:
  /// no pass computed it.
  struct Numbers {
    /// The numbers that the step left.
    float found_inf = 0, grad_norm = 0, scale = 1, above_norm = 0;
  };

  StepResult() = default;
  StepResult(const torch::optim::Optimizer* optimizer, Numbers numbers, at::Tensor loss)
      : optimizer_(optimizer), host_(numbers), loss_(std::move(loss)) {}
  /// `numbers`: fp32, begins with those of Numbers in their order; on the device of the step.
  /// `written_on`: the stream that writes them, so that any other stream can read them. None for
  /// the numbers of a graph, which the reader orders.
  StepResult(const torch::optim::Optimizer* optimizer, at::Tensor numbers, at::Tensor loss,
             std::optional<c10::Stream> written_on = std::nullopt)
      : optimizer_(optimizer),
        device_(std::move(numbers)),
        loss_(std::move(loss)),
        written_on_(written_on) {}

  /// All of these numbers, with one read.
  Numbers numbers() const;

  /// Whether the numbers are on a device, so that reading them waits for it.
  bool is_on_device() const { return device_.defined(); }

  /// Whether the step was skipped: it changed nothing.
  bool skipped() const { return numbers().found_inf != 0; }

  /// Why nothing was changed; kNone: the step was taken.
  SkipReason reason() const {
    const Numbers read = numbers();
    if (read.found_inf == 0) return SkipReason::kNone;
    return read.above_norm == 0 ? SkipReason::kNonfinite : SkipReason::kNorm;
  }

  /// The optimizer that stepped or was held back.
  const torch::optim::Optimizer* optimizer() const { return optimizer_; }

  /// L2 norm of all gradients of this optimizer, unscaled, before clipping; not finite if the step
  /// was skipped for that. Nothing if no pass computed it: a torch::optim optimizer without
  /// GradScalerOptions::record_grad_norm.
  std::optional<double> grad_norm() const;

  /// The loss scale that these gradients carried; 1 without a scaler.
  float scale() const { return numbers().scale; }

  /// This result, with what the step's closure returned.
  StepResult with_loss(at::Tensor loss) const {
    StepResult result = *this;
    result.loss_ = std::move(loss);
    return result;
  }

  /// This result, for an optimizer that has another address now.
  StepResult moved_to(const torch::optim::Optimizer* optimizer) const {
    StepResult result = *this;
    if (optimizer_) result.optimizer_ = optimizer;
    return result;
  }

  /// This result with numbers of its own: those of the last replay, of a step in a graph. Copies
  /// them on the current stream, and does not wait.
  StepResult copied() const;

  /// The loss that the closure returned; undefined without a closure.
  const at::Tensor& loss() const { return loss_; }

  /// Whether the step was skipped: fp32, (), 0 or 1, on the device of the step. Does not
  /// synchronise; the current stream waits for that of the step.
  at::Tensor found_inf() const;

 private:
  const torch::optim::Optimizer* optimizer_ = nullptr;
  Numbers host_;
  at::Tensor device_;  // (4 or more) or undefined
  at::Tensor loss_;
  std::optional<c10::Stream> written_on_;
};

}  // namespace demi
