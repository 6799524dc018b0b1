#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

#include "demi/core/export.h"

namespace demi::train {

enum class Loss {
  cross_entropy,                // logits (N, C), classes (N) int64
  cross_entropy_probabilities,  // probabilities (N, C), as a softmax gives them; classes (N) int64
  bce_with_logits,              // logits (N) or (N, 1), labels 0 or 1 of the same shape
  mse,                          // any shape, equal on both sides
};

/// "cross-entropy", "bce", "mse". Throws UsageError with the nearest right name.
DEMI_API Loss parse_loss(std::string_view name);

/// Mean over the batch, FP32 (FP64 for FP64 outputs), whatever the output's dtype: Micikevicius et
/// al. 2017, section 3.3, "prediction to FP32". `label_smoothing` in [0, 1), cross entropy on
/// logits only. Probabilities are held above 1e-7, as in Keras.
DEMI_API at::Tensor loss_of(Loss loss, const at::Tensor& output, const at::Tensor& target,
                            double label_smoothing = 0);

/// Which examples of the batch are right, bool (N) on the output's device; undefined for mse. Does
/// not synchronise.
DEMI_API at::Tensor right_ones(Loss loss, const at::Tensor& output, const at::Tensor& target);

/// A loss by name, or one of the user's own: a function of output and target that gives the mean
/// over the batch as a scalar. With one of the user's own there is no accuracy; give a Metric.
class DEMI_API LossFunction {
 public:
  using Function = std::function<at::Tensor(const at::Tensor& output, const at::Tensor& target)>;

  LossFunction(Loss loss) : loss_(loss) {}  // NOLINT: a name is a loss
  template <class F>
  requires std::is_invocable_r_v<at::Tensor, F, const at::Tensor&, const at::Tensor&> LossFunction(
      F function)
      : function_(std::move(function)) {}  // NOLINT: so is a function

  at::Tensor operator()(const at::Tensor& output, const at::Tensor& target,
                        double label_smoothing = 0) const;
  at::Tensor is_right(const at::Tensor& output, const at::Tensor& target) const;
  bool has_accuracy() const { return !function_ && loss_ != Loss::mse; }

 private:
  Loss loss_ = Loss::cross_entropy;
  Function function_;
};

}  // namespace demi::train
