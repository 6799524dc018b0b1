#include "demi/imported/frozen_parts.h"

#include "demi/core/error.h"

namespace demi::imported {
namespace {

bool has_other_modes(const torch::nn::Module& network) {
  bool has_other = false;
  // Asks without names: a forward of a small network should not pay for their texts.
  network.apply([&](const torch::nn::Module& part) {
    has_other |= part.is_training() != network.is_training();
  });
  return has_other;
}

}  // namespace

std::shared_ptr<const FrozenParts> FrozenParts::of(const torch::nn::Module& network) {
  if (!has_other_modes(network)) return nullptr;
  auto parts = std::make_shared<FrozenParts>();
  network.apply([&](const std::string& name, const torch::nn::Module& part) {
    const bool has_other = part.is_training() != network.is_training();
    require(network.is_training() || !has_other,
            {.where = "imported.forward",
             .what = "a part of the network is in train mode, and the network in eval mode",
             .seen = name,
             .accepted = "parts in eval mode in a network in train mode",
             .advice = "call train() on the network, and then eval() on its other parts"});
    parts->is_frozen_[name] = has_other;
  });
  return parts;
}

bool FrozenParts::hold(std::string_view module) const {
  while (true) {
    const auto found = is_frozen_.find(module);
    if (found != is_frozen_.end()) return found->second;
    const std::size_t dot = module.rfind('.');
    module = module.substr(0, dot == std::string_view::npos ? 0 : dot);
    if (module.empty()) return false;
  }
}

}  // namespace demi::imported
