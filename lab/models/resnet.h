#pragma once

#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/pimpl.h>

#include <array>
#include <optional>
#include <string>
#include <string_view>

#include "demi/core/export.h"
#include "demi/nn/cloneable.h"
#include "demi/recompute/recompute.h"

namespace demi::models {

/// The parts of a stage: two convolutions 3 x 3, or three of 1 x 1, 3 x 3 and 1 x 1.
enum class ResNetBlock { basic, bottleneck };
/// The layers before the stages: for pictures of 32 x 32, or for larger ones.
enum class ResNetStem { cifar, imagenet };

/// Sizes of a ResNet.
struct ResNetOptions {
  ResNetBlock block = ResNetBlock::basic;        // of all stages
  std::array<int64_t, 4> depths = {2, 2, 2, 2};  // blocks in each of the four stages
  ResNetStem stem = ResNetStem::cifar;           // 3 x 3, or 7 x 7 of stride 2 with a max-pool
  int64_t channels = 3;                          // of the pictures
  int64_t classes = 10;                          // of the answer
  /// Each block of the stages makes its activations again in backward, and keeps this; empty: it
  /// keeps them.
  std::optional<Keep> recompute = {};

  /// ResNet-18 for pictures of 32 x 32.
  static ResNetOptions resnet18() { return {}; }
  /// ResNet-50 for pictures of 32 x 32.
  static ResNetOptions resnet50() {
    return {.block = ResNetBlock::bottleneck, .depths = {3, 4, 6, 3}};
  }
};

/// He, Zhang, Ren, Sun, "Deep residual learning for image recognition", CVPR 2016; stride on the 3
/// x 3 convolution of a bottleneck; He's normal initial weights (fan out). With the CIFAR stem and
/// 10 classes ResNet-18 has 11,173,962 parameters and ResNet-50 23,520,842. (N, C, H, W) to logits
/// (N, classes).
class DEMI_API ResNetImpl : public nn::Cloneable<ResNetImpl> {
 public:
  explicit ResNetImpl(const ResNetOptions& options = {});

  /// Registers new layers, as the constructor does.
  void reset() override;

  /// (N, C, H, W) to logits (N, classes).
  at::Tensor forward(const at::Tensor& images);

 private:
  at::Tensor through_stages(at::Tensor x);

  ResNetOptions options_;
  torch::nn::Sequential stem_, stages_;
  torch::nn::Linear classifier_{nullptr};
  int64_t stride_;  // pixels of a picture, across or down, to one of the last stage
};
TORCH_MODULE(ResNet);

/// The name in torchvision's ResNet of what ResNet with these options calls `name`. Of ResNet-18:
/// "stem.0.weight" is "conv1.weight", "stages.3.body.1.bias" is "layer2.1.bn1.bias",
/// "classifier.weight" is "fc.weight". Both have the same tensors in the same order, and with
/// ResNetStem::imagenet of the same shapes. Throws UsageError if ResNet has no such name.
DEMI_API std::string torchvision_name(std::string_view name, const ResNetOptions& options);

}  // namespace demi::models
