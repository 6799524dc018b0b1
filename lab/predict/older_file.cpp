#include "lab/predict/older_file.h"

#include <string>

#include "demi/train/network.h"

namespace demi::predict {
namespace {

// The number of classes in the file, by the tensors that the classes widen. If none differs from
// those of a network with kTried classes, it is kTried.
int64_t classes_in(const checkpoint::NamedTensors& weights, const settings::Config& config,
                   workload::DataShape shape) {
  constexpr int64_t kTried = 3;
  shape.classes = kTried;
  const train::Network tried = workload::make_network(config, shape, 0, c10::kCPU);
  for (const auto& parameter : tried.module->named_parameters()) {
    const auto found = weights.find(parameter.key());
    if (found == weights.end() || found->second.dim() != parameter.value().dim()) break;
    const bool is_of_classes =
        found->second.sizes() != parameter.value().sizes() && parameter.value().size(0) == kTried;
    if (is_of_classes) return found->second.size(0);
  }
  return kTried;
}

}  // namespace

std::shared_ptr<const workload::ModelData> data_of_older_file(
    const settings::Config& config, const checkpoint::NamedTensors& weights) {
  auto model = std::make_shared<workload::ModelData>(workload::data_of_settings(config));
  model->shape.classes = classes_in(weights, config, model->shape);
  for (int64_t i = 0; i < model->shape.classes; ++i) model->classes.push_back(std::to_string(i));
  return model;
}

}  // namespace demi::predict
