#include "demi/train/network.h"

#include <algorithm>
#include <string>
#include <vector>

#include "demi/core/error.h"
#include "demi/core/nearest.h"
#include "demi/models/fashion_cnn.h"
#include "demi/models/seeded.h"
#include "demi/train/recipe.h"

namespace demi::train {
namespace {

// Convolution weights in the layout of the pictures; LibTorch's modules have no call for it.
void to_channels_last(torch::nn::Module& module) {
  const torch::NoGradGuard no_grad;
  for (at::Tensor& parameter : module.parameters()) {
    if (parameter.dim() == 4)
      parameter.set_data(parameter.contiguous(c10::MemoryFormat::ChannelsLast));
  }
}

}  // namespace

std::vector<std::string> model_names() { return {"fashion-cnn"}; }

void require_model(std::string_view model) {
  const std::vector<std::string> known = model_names();
  if (std::find(known.begin(), known.end(), model) != known.end()) return;
  throw UsageError({.where = "train.make_network",
                    .what = "no such model",
                    .seen = model,
                    .advice = did_you_mean(model, known)});
}

Network make_network(std::string_view model, const DataShape& shape, uint64_t seed,
                     c10::Device device) {
  require_model(model);
  const models::Seeded seeded(seed);
  Network result = network(models::FashionCNN(
      models::FashionCNNOptions{.channels = shape.channels, .classes = shape.classes}));
  result.module->to(device);
  to_channels_last(*result.module);
  return result;
}

}  // namespace demi::train
