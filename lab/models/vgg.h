#pragma once

#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/pimpl.h>

#include <string>
#include <string_view>

#include "demi/core/export.h"
#include "demi/nn/cloneable.h"

namespace demi::models {

/// Sizes of a VGG19.
struct VGG19Options {
  int64_t channels = 3;  // of the pictures
  int64_t classes = 10;  // of the answer
};

/// Simonyan, Zisserman, "Very deep convolutional networks", ICLR 2015, configuration E, as is usual
/// for pictures of 32 x 32: BatchNorm after each of the 16 convolutions, one linear layer. (N, C,
/// 32, 32) to logits (N, classes); 20,040,522 parameters for 10 classes of 3 channels.
class DEMI_API VGG19Impl : public nn::Cloneable<VGG19Impl> {
 public:
  explicit VGG19Impl(const VGG19Options& options = {});

  /// Registers new layers, as the constructor does.
  void reset() override;

  /// (N, C, 32, 32) to logits (N, classes).
  at::Tensor forward(const at::Tensor& images) { return layers_->forward(images); }

 private:
  VGG19Options options_;
  torch::nn::Sequential layers_;
};
TORCH_MODULE(VGG19);

/// The name in torchvision's vgg19_bn of what VGG19 calls `name`: "layers.0.weight" is
/// "features.0.weight". "" for the linear layer, in whose place torchvision has three.
DEMI_API std::string vgg19_name(std::string_view name);

}  // namespace demi::models
