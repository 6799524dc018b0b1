#pragma once

#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/pimpl.h>

#include "demi/core/export.h"
#include "demi/nn/cloneable.h"

namespace demi::models {

/// Sizes of a SimpleCNN.
struct SimpleCNNOptions {
  int64_t channels = 3;  // of the pictures
  int64_t size = 32;     // height and width of the pictures, a multiple of 4
  int64_t classes = 10;  // of the answer
};

/// Conv 3-32 3 x 3, ReLU, max-pool 2, Conv 32-64 3 x 3, ReLU, max-pool 2, Linear 4096-10: 60,362
/// parameters on CIFAR-10. (N, C, H, W) to logits (N, classes).
class DEMI_API SimpleCNNImpl : public nn::Cloneable<SimpleCNNImpl> {
 public:
  explicit SimpleCNNImpl(const SimpleCNNOptions& options = {});

  /// Registers new layers, as the constructor does.
  void reset() override;

  /// (N, C, size, size) to logits (N, classes).
  at::Tensor forward(const at::Tensor& images) { return layers_->forward(images); }

 private:
  SimpleCNNOptions options_;
  torch::nn::Sequential layers_;
};
TORCH_MODULE(SimpleCNN);

}  // namespace demi::models
