#pragma once

#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/pimpl.h>

#include "demi/core/export.h"
#include "demi/nn/cloneable.h"

namespace demi::models {

/// Sizes of a FashionCNN.
struct FashionCNNOptions {
  int64_t channels = 1;  // of the pictures
  int64_t classes = 10;  // of the answer
};

/// The main job's network for pictures of 28 x 28: five 3 x 3 convolutions with BatchNorm and ReLU,
/// 32, 32, pool, 64, 64, pool, 128 channels, then the mean over the plane and one linear layer. (N,
/// C, H, W) to logits (N, classes).
class DEMI_API FashionCNNImpl : public nn::Cloneable<FashionCNNImpl> {
 public:
  explicit FashionCNNImpl(const FashionCNNOptions& options = {});

  /// Registers new layers, as the constructor does.
  void reset() override;

  /// (N, C, H, W) to logits (N, classes).
  at::Tensor forward(const at::Tensor& images);

 private:
  FashionCNNOptions options_;
  torch::nn::Sequential features_;    // (N, C, H, W) to (N, 128, H / 4, W / 4)
  torch::nn::Sequential classifier_;  // (N, 128) to (N, classes)
};
TORCH_MODULE(FashionCNN);

}  // namespace demi::models
