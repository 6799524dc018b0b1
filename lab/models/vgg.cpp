#include "lab/models/vgg.h"

#include <torch/nn/init.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/linear.h>

#include <cstddef>
#include <iterator>

#include "demi/nn/batch_norm.h"
#include "lab/models/check.h"
#include "lab/models/entries.h"
#include "lab/models/for_pictures.h"

namespace demi::models {
namespace {

constexpr int64_t kPool = 0;
constexpr int64_t kConfigurationE[] = {64,  64,    kPool, 128,   128, kPool, 256,
                                       256, 256,   256,   kPool, 512, 512,   512,
                                       512, kPool, 512,   512,   512, 512,   kPool};

}  // namespace

VGG19Impl::VGG19Impl(const VGG19Options& options) : options_(options) {
  require_positive("models.VGG19", "channels", options.channels);
  require_positive("models.VGG19", "classes", options.classes);
  VGG19Impl::reset();
}

void VGG19Impl::reset() {
  using namespace torch::nn;
  layers_ = register_module("layers", Sequential());
  int64_t in = options_.channels;
  for (std::size_t i = 0; i < std::size(kConfigurationE); ++i) {
    const int64_t out = kConfigurationE[i];
    if (out == kPool) continue;  // belongs to the normalisation before it
    const bool pools = kConfigurationE[i + 1] == kPool;
    Conv2d convolution(Conv2dOptions(in, out, 3).padding(1));
    init::kaiming_normal_(convolution->weight, 0.0, torch::kFanOut, torch::kReLU);
    init::zeros_(convolution->bias);
    layers_->push_back(convolution);
    layers_->push_back(nn::BatchNorm2d(nn::BatchNorm2dOptions(out).relu(true).pool(pools ? 2 : 1)));
    layers_->push_back(Identity());  // ReLU's number, and the pooling's
    if (pools) layers_->push_back(Identity());
    in = out;
  }
  layers_->push_back(Flatten());
  layers_->push_back(Linear(512, options_.classes));
}

std::string vgg19_name(std::string_view name) {
  constexpr std::string_view kLayers = "layers.", kLinear = "layers.54.";
  if (!name.starts_with(kLayers) || name.starts_with(kLinear)) return "";
  return "features." + std::string(name.substr(kLayers.size()));
}

ModelInfo vgg19_model() {
  return {.name = "vgg19",
          .title = "VGG-19 with BatchNorm for pictures of 32 x 32",
          .reads = data::Kind::pictures,
          .make = [](const ModelOptions& o) { return make_for_pictures<VGG19, VGG19Options>(o); },
          .head = "layers",
          .torchvision = TorchvisionNames{vgg19_name, /*left_out=*/"classifier"}};
}

}  // namespace demi::models
