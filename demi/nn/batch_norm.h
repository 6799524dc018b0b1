#pragma once

#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/pimpl.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <ostream>

#include "demi/batch_norm/batch_norm.h"
#include "demi/core/export.h"

namespace demi::nn {

/// torch::nn::BatchNormOptions, and what follows the normalisation.
class DEMI_API BatchNorm2dOptions : public torch::nn::BatchNormOptions {
 public:
  /// The number of channels.
  // NOLINTNEXTLINE(google-explicit-constructor): as torch's
  BatchNorm2dOptions(std::int64_t num_features) : torch::nn::BatchNormOptions(num_features) {}
  /// The options of torch's layer; nothing follows the normalisation.
  // NOLINTNEXTLINE(google-explicit-constructor): a program moves to demi
  BatchNorm2dOptions(const torch::nn::BatchNormOptions& options)
      : torch::nn::BatchNormOptions(options) {}

  /// ReLU behind it [off].
  BatchNorm2dOptions& relu(bool on);
  bool relu() const { return relu_; }
  /// torch.nn.MaxPool2d(size) behind ReLU.
  BatchNorm2dOptions& pool(std::int64_t size);
  BatchNorm2dOptions& pool(const MaxPooling& windows);
  const MaxPooling& pool() const { return pool_; }

 private:
  bool relu_ = false;
  MaxPooling pool_;
};

/// torch::nn::BatchNorm2d with the same parameters, buffers and names, followed by ReLU and max
/// pooling where the options say so, computed by demi::batch_norm_relu:
///
///     demi::nn::BatchNorm2d(demi::nn::BatchNorm2dOptions(64).relu(true).pool(2))
///
/// In a Sequential a torch::nn::Identity in the place of the ReLU keeps the other parts' numbers,
/// and so the names on disk. Layers can be synchronised, and kept in FP32 by to_precision, as
/// torch's.
class DEMI_API BatchNorm2dImpl : public torch::nn::BatchNorm2dImpl {
 public:
  /// Throws UsageError for a negative number of channels, and a pool whose sizes are not 1 or more.
  explicit BatchNorm2dImpl(const BatchNorm2dOptions& options);

  /// (N, C, H, W) to the same, or to the pooled size, in the input's dtype and memory format.
  /// Throws UsageError in training for one value a channel; c10::Error for other shapes.
  at::Tensor forward(const at::Tensor& input);
  /// forward() with `add`, (N, C, H, W), added before ReLU: the end of a residual block.
  at::Tensor forward_add(const at::Tensor& input, const at::Tensor& add);

  /// A deep copy, on `device` if one is given. Throws UsageError for a class that derives from this
  /// one: it has to override clone().
  std::shared_ptr<torch::nn::Module> clone(
      const std::optional<torch::Device>& device = std::nullopt) const override;

  /// Prints what torch::nn::BatchNorm2d prints, and what follows the normalisation.
  void pretty_print(std::ostream& stream) const override;

 private:
  BatchNorm2dOptions own_;
};
TORCH_MODULE(BatchNorm2d);

}  // namespace demi::nn
