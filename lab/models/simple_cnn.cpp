#include "lab/models/simple_cnn.h"

#include <fmt/format.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/pooling.h>

#include "demi/core/error.h"
#include "lab/models/check.h"
#include "lab/models/entries.h"
#include "lab/models/for_pictures.h"

namespace demi::models {

SimpleCNNImpl::SimpleCNNImpl(const SimpleCNNOptions& options) : options_(options) {
  constexpr std::string_view kWhere = "models.SimpleCNN";
  require_positive(kWhere, "channels", options.channels);
  require_positive(kWhere, "size", options.size);
  require_positive(kWhere, "classes", options.classes);
  if (options.size % 4 != 0)
    refuse({.where = kWhere,
            .what = "size cannot be halved twice",
            .seen = fmt::to_string(options.size),
            .accepted = "a multiple of 4"});
  SimpleCNNImpl::reset();
}

void SimpleCNNImpl::reset() {
  using namespace torch::nn;
  layers_ = register_module("layers", Sequential());
  const auto add_block = [&](int64_t in, int64_t out) {
    layers_->push_back(Conv2d(Conv2dOptions(in, out, 3).padding(1)));
    layers_->push_back(ReLU(ReLUOptions(/*inplace=*/true)));
    layers_->push_back(MaxPool2d(2));
  };
  add_block(options_.channels, 32);
  add_block(32, 64);
  layers_->push_back(Flatten());
  layers_->push_back(Linear(64 * options_.size / 4 * options_.size / 4, options_.classes));
}

ModelInfo simple_cnn_model() {
  return {
      .name = "simple-cnn",
      .title = "two 3 x 3 convolutions and one linear layer",
      .reads = data::Kind::pictures,
      .make =
          [](const ModelOptions& o) { return make_for_pictures<SimpleCNN, SimpleCNNOptions>(o); },
      .head = "layers"};
}

}  // namespace demi::models
