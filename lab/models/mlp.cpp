#include "lab/models/mlp.h"

#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/linear.h>

#include "lab/models/check.h"
#include "lab/models/entries.h"
#include "lab/models/own_settings.h"

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

ModelInfo mlp_model() {
  static const OwnSettings<MLPOptions> own(
      {}, {{.setting =
                values::whole("depth", &MLPOptions::layers, 1, "number of linear layers", 10'000),
            .key = "layers"}});
  return {.name = "mlp",
          .title = "Linear layers with ReLU between them",
          .reads = data::Kind::rows,
          .make =
              [](const ModelOptions& given) {
                MLPOptions options = own.read(given.settings);
                options.in = given.in.value_or(options.in);
                options.out = given.out.value_or(options.out);
                return train::network(MLP(options));
              },
          .settings = own.over_texts(),
          .head = "layers"};
}

}  // namespace demi::models
