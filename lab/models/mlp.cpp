#include "lab/models/mlp.h"

#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/linear.h>

#include "lab/models/check.h"

namespace demi::models {

MLPImpl::MLPImpl(const MLPOptions& options) {
  constexpr std::string_view kWhere = "models.MLP";
  require_positive(kWhere, "in", options.in);
  require_positive(kWhere, "out", options.out);
  require_positive(kWhere, "layers", options.layers);
  for (int64_t layer = 1; layer < options.layers; ++layer) {
    layers_->push_back(torch::nn::Linear(options.in, options.in));
    layers_->push_back(torch::nn::ReLU());
  }
  layers_->push_back(torch::nn::Linear(options.in, options.out));
  register_module("layers", layers_);
}

}  // namespace demi::models
