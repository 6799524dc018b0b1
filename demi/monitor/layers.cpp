#include "demi/monitor/layers.h"

#include <iterator>

namespace demi::monitor {
namespace {

const char* address_of(const at::Tensor& tensor) {
  return static_cast<const char*>(tensor.const_data_ptr());
}

}  // namespace

Layers::Layers(const torch::nn::Module& model) {
  const auto add = [&](const std::string& name, const torch::nn::Module& module) {
    Layer layer{name.empty() ? "model" : name, {}};
    for (const auto& parameter : module.named_parameters(/*recurse=*/false))
      layer.parameters.push_back(parameter.value());
    if (layer.parameters.empty()) return;
    for (const at::Tensor& p : layer.parameters) {
      if (p.numel() == 0 || !p.has_storage()) continue;
      const char* begin = address_of(p);
      by_address_[begin] = {begin + p.nbytes(), static_cast<int>(layers_.size())};
    }
    layers_.push_back(std::move(layer));
  };
  add("", model);
  for (const auto& module : model.named_modules("", /*include_self=*/false))
    add(module.key(), *module.value());
}

int Layers::find(const at::Tensor& tensor) const {
  if (!tensor.has_storage() || tensor.numel() == 0) return -1;
  const char* address = address_of(tensor);
  const auto after = by_address_.upper_bound(address);
  if (after == by_address_.begin()) return -1;
  const Range& range = std::prev(after)->second;
  return address < range.end ? range.layer : -1;
}

}  // namespace demi::monitor
