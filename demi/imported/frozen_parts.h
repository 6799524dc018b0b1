#pragma once

#include <torch/nn/module.h>

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>

namespace demi::imported {

/// The parts of a network that are in eval mode while the network trains: `bn->eval()` after
/// `model->train()`. Immutable.
class FrozenParts {
 public:
  /// The frozen parts of the network; null if every part has the network's mode. Throws UsageError
  /// for a part in train mode in a network in eval mode: its graph does not show what the part does
  /// in training.
  static std::shared_ptr<const FrozenParts> of(const torch::nn::Module& network);

  /// Whether operations of this module ("block.bn") are in eval mode: the nearest module around
  /// them that has parameters or buffers decides.
  bool hold(std::string_view module) const;

 private:
  std::map<std::string, bool, std::less<>> is_frozen_;  // by name; "" is the network
};

}  // namespace demi::imported
