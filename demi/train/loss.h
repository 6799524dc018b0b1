#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>

#include "demi/core/export.h"

namespace demi::train {

/// Losses by name, with the shapes of output and target.
enum class Loss {
  cross_entropy,  // logits (N, C, ...), C >= 2; classes (N, ...) or probabilities (N, C, ...)
  cross_entropy_probabilities,  // probabilities (N, C), the output of a softmax; classes (N)
  bce_with_logits,              // logits (N, ...), labels 0 or 1 of the same shape
  mse,                          // output and target of one shape
};

/// Classes are integers, 0 to C - 1. Targets of this class count nowhere, as in PyTorch.
inline constexpr std::int64_t kIgnoredClass = -100;

/// Whether each class counts, a bool of its shape: those that are not kIgnoredClass. Compared in
/// int64, since a narrower dtype would wrap the number: uint8 reads -100 as class 156.
at::Tensor is_counted(const at::Tensor& classes);

/// "cross-entropy", "bce", "mse". Throws UsageError with the nearest right name.
DEMI_API Loss parse_loss(std::string_view name);

/// 16-bit tensors in FP32, all others as they are: losses and metrics are computed in FP32 at least
/// (Micikevicius et al. 2017, section 3.3). Differentiable.
DEMI_API at::Tensor at_least_fp32(const at::Tensor& output);

/// `target` in the shape of `output`, from which dimensions of size 1 may be missing or left over:
/// (N) for (N, 1). Throws UsageError with `where` for any other shape, which would be broadcast.
DEMI_API at::Tensor target_like(const at::Tensor& output, const at::Tensor& target,
                                std::string_view where);

/// The mean over the answers that count, a scalar in FP32, or FP64 for FP64 outputs.
/// `label_smoothing` is in [0, 1), for cross entropy on logits only. Probabilities are kept above
/// 1e-7, as in Keras. Throws UsageError for shapes and dtypes that do not fit. Does not
/// synchronise.
DEMI_API at::Tensor loss_of(Loss loss, const at::Tensor& output, const at::Tensor& target,
                            double label_smoothing = 0);

/// Whether each answer of the batch is right: bool, of the shape of classes or labels, on the
/// output's device; false for an ignored one. Undefined for mse. Does not synchronise.
DEMI_API at::Tensor right_ones(Loss loss, const at::Tensor& output, const at::Tensor& target);

/// Number of the batch's answers that count: () int64 on the output's device. Undefined for mse.
/// Does not synchronise.
DEMI_API at::Tensor answers_in(Loss loss, const at::Tensor& output, const at::Tensor& target);

/// The batch's part of the sum that is later divided by all answers, or by all examples if
/// `answers` is undefined. A batch without answers, whose mean is NaN, adds 0.
at::Tensor sum_over(const at::Tensor& mean, const at::Tensor& answers, std::int64_t examples);

/// A loss by name, times a weight, or a function of yours: of output and target, returning the mean
/// over the batch as a scalar. A function gets 16-bit outputs in FP32. With a function there is no
/// accuracy, and each example counts alike in a mean over batches: give a Metric.
class DEMI_API LossFunction {
 public:
  /// Output and target of a batch give the loss, a scalar.
  using Function = std::function<at::Tensor(const at::Tensor& output, const at::Tensor& target)>;

  /// Throws UsageError for a weight that is NaN or Inf.
  LossFunction(Loss loss, double weight = 1);  // NOLINT: a name is a loss
  /// Throws UsageError for an empty std::function.
  template <class F>
  // NOLINTNEXTLINE(google-explicit-constructor): so is a function
  requires std::is_invocable_r_v<at::Tensor, F, const at::Tensor&, const at::Tensor&> LossFunction(
      F function)
      : function_(std::move(function)) {
    require_function();
  }

  /// The loss of a batch, a scalar on a graph. Throws UsageError for shapes and dtypes that the
  /// loss does not take.
  at::Tensor operator()(const at::Tensor& output, const at::Tensor& target,
                        double label_smoothing = 0) const;
  /// The right_ones() of this loss; undefined for a function of yours.
  at::Tensor is_right(const at::Tensor& output, const at::Tensor& target) const;
  /// The answers_in() of this loss; undefined for a function of yours.
  at::Tensor answers(const at::Tensor& output, const at::Tensor& target) const;
  /// The factor of the loss.
  double weight() const { return weight_; }
  /// Whether an accuracy has a meaning: not for mse and a function of yours.
  bool has_accuracy() const { return !function_ && loss_ != Loss::mse; }
  /// Whether label smoothing has a meaning for it.
  bool takes_label_smoothing() const { return !function_ && loss_ == Loss::cross_entropy; }
  /// The class of each answer, () or more int64, and how many classes there are.
  struct Classes {
    at::Tensor of_answers;   // () or more, int64
    std::int64_t count = 0;  // how many classes there are
  };
  /// The classes of the batch's answers; for a loss that has an accuracy.
  Classes classes(const at::Tensor& output, const at::Tensor& target) const;
  /// The share of the batch's targets that count: 1, unless LibTorch ignores some (-100, in a cross
  /// entropy of classes). Synchronises there.
  double share_that_counts(const at::Tensor& target) const;
  /// "cross_entropy, weight 1", "a function": for ranks that compare their losses.
  std::string text() const;

 private:
  void require_function() const;

  Loss loss_ = Loss::cross_entropy;
  double weight_ = 1;
  Function function_;
};

}  // namespace demi::train
