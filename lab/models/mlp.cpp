#include "lab/models/mlp.h"

#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/linear.h>

#include "lab/models/check.h"

namespace demi::models {

MLPImpl::MLPImpl(const MLPOptions& options) : options_(options) {
  constexpr std::string_view kWhere = "models.MLP";
  require_positive(kWhere, "in", options.in);
  require_positive(kWhere, "out", options.out);
  require_positive(kWhere, "layers", options.layers);
  MLPImpl::reset();
}

void MLPImpl::reset() {
  layers_ = register_module("layers", torch::nn::Sequential());
  for (int64_t layer = 1; layer < options_.layers; ++layer) {
    layers_->push_back(torch::nn::Linear(options_.in, options_.in));
    layers_->push_back(torch::nn::ReLU());
  }
  layers_->push_back(torch::nn::Linear(options_.in, options_.out));
}

}  // namespace demi::models
