#include "lab/models/fashion_cnn.h"

#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/linear.h>

#include "demi/nn/batch_norm.h"
#include "lab/models/check.h"
#include "lab/models/entries.h"
#include "lab/models/for_pictures.h"

namespace demi::models {
namespace {

// The names of the layers that follow count those that BatchNorm2d computes, ReLU and pooling.
void add_block(torch::nn::Sequential& features, int64_t in, int64_t out, bool pools) {
  // BatchNorm's shift makes a bias of the convolution superfluous.
  features->push_back(
      torch::nn::Conv2d(torch::nn::Conv2dOptions(in, out, 3).padding(1).bias(false)));
  features->push_back(nn::BatchNorm2d(nn::BatchNorm2dOptions(out).relu(true).pool(pools ? 2 : 1)));
  features->push_back(torch::nn::Identity());
  if (pools) features->push_back(torch::nn::Identity());
}

}  // namespace

FashionCNNImpl::FashionCNNImpl(const FashionCNNOptions& options) : options_(options) {
  constexpr std::string_view kWhere = "models.FashionCNN";
  require_positive(kWhere, "channels", options.channels);
  require_positive(kWhere, "classes", options.classes);
  FashionCNNImpl::reset();
}

void FashionCNNImpl::reset() {
  features_ = register_module("features", torch::nn::Sequential());
  classifier_ = register_module("classifier", torch::nn::Sequential());
  add_block(features_, options_.channels, 32, /*pools=*/false);
  add_block(features_, 32, 32, true);
  add_block(features_, 32, 64, false);
  add_block(features_, 64, 64, true);
  add_block(features_, 64, 128, false);
  classifier_->push_back(torch::nn::Linear(128, options_.classes));
}

at::Tensor FashionCNNImpl::forward(const at::Tensor& images) {
  return classifier_->forward(features_->forward(images).mean({2, 3}));
}

ModelInfo fashion_cnn_model() {
  return {
      .name = "fashion-cnn",
      .title = "five 3 x 3 convolutions of 32, 64, 128 channels with BatchNorm",
      .reads = data::Kind::pictures,
      .make =
          [](const ModelOptions& o) { return make_for_pictures<FashionCNN, FashionCNNOptions>(o); },
      .pictures = PictureShape{1, 28, 10}};
}

}  // namespace demi::models
