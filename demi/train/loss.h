#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

#include "demi/core/export.h"

namespace demi::train {

/// Losses by name, with the shapes of output and target.
enum class Loss {
  cross_entropy,                // logits (N, C), classes (N) int64
  cross_entropy_probabilities,  // probabilities (N, C), the output of a softmax; classes (N) int64
  bce_with_logits,              // logits (N) or (N, 1), labels 0 or 1 of the same shape
  mse,                          // output and target of one shape
};

/// "cross-entropy", "bce", "mse". Throws UsageError with the nearest right name.
DEMI_API Loss parse_loss(std::string_view name);

/// The mean over the batch, a scalar in FP32, or FP64 for FP64 outputs (Micikevicius et al. 2017,
/// section 3.3). `label_smoothing` is in [0, 1), for cross entropy on logits only. Probabilities
/// are kept above 1e-7, as in Keras. Does not synchronise.
DEMI_API at::Tensor loss_of(Loss loss, const at::Tensor& output, const at::Tensor& target,
                            double label_smoothing = 0);

/// Which examples of the batch are classified correctly: bool (N) on the output's device. Undefined
/// for mse. Does not synchronise.
DEMI_API at::Tensor right_ones(Loss loss, const at::Tensor& output, const at::Tensor& target);

/// A loss by name, times a weight, or a function of yours: of output and target, returning the mean
/// over the batch as a scalar. With a function there is no accuracy: give a Metric.
class DEMI_API LossFunction {
 public:
  using Function = std::function<at::Tensor(const at::Tensor& output, const at::Tensor& target)>;

  LossFunction(Loss loss, double weight = 1)  // NOLINT: a name is a loss
      : loss_(loss), weight_(weight) {}
  template <class F>
  // NOLINTNEXTLINE(google-explicit-constructor): so is a function
  requires std::is_invocable_r_v<at::Tensor, F, const at::Tensor&, const at::Tensor&> LossFunction(
      F function)
      : function_(std::move(function)) {}

  at::Tensor operator()(const at::Tensor& output, const at::Tensor& target,
                        double label_smoothing = 0) const;
  /// As right_ones(); undefined for a function of yours.
  at::Tensor is_right(const at::Tensor& output, const at::Tensor& target) const;
  bool has_accuracy() const { return !function_ && loss_ != Loss::mse; }

 private:
  Loss loss_ = Loss::cross_entropy;
  double weight_ = 1;
  Function function_;
};

}  // namespace demi::train
