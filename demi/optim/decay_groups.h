#pragma once

#include <torch/optim/optimizer.h>

#include <memory>
#include <vector>

#include "demi/core/export.h"

namespace torch::nn {
class Module;
}

namespace demi::optim {

/// A module's parameters with and without weight decay. Biases, scales and shifts of normalisation
/// layers (all parameters of at most one dimension, and those of a LayerNorm) have none: decay
/// would change a layer's mean and spread instead of the size of a map (Goyal et al. 2017,
/// "Accurate, large minibatch SGD", section 5.3).
struct DecayGroups {
  /// Each parameter of the module is in one of the two.
  std::vector<at::Tensor> decay, no_decay;
};
/// The groups of a module's parameters, in the order of parameters(). Submodules included.
DEMI_API DecayGroups decay_groups(const torch::nn::Module& module);

/// Two parameter groups, the second with a weight decay of 0. They hold all options: hand them over
/// without defaults, from which a weight decay of 0 would inherit where 0 is the rule's default.
///
///     demi::optim::AdamW optimizer(with_decay_by_rule(*model, demi::optim::AdamWOptions(1e-3)));
template <class Options>
std::vector<torch::optim::OptimizerParamGroup> with_decay_by_rule(const torch::nn::Module& module,
                                                                  const Options& options) {
  DecayGroups groups = decay_groups(module);
  std::vector<torch::optim::OptimizerParamGroup> made;
  made.emplace_back(std::move(groups.decay), std::make_unique<Options>(options));
  made.emplace_back(std::move(groups.no_decay),
                    std::make_unique<Options>(Options(options).weight_decay(0)));
  return made;
}

}  // namespace demi::optim
