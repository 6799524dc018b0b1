#pragma once

#include <torch/optim/optimizer.h>

#include <memory>
#include <utility>
#include <vector>

#include "demi/core/export.h"

namespace torch::nn {
class Module;
}

namespace demi::optim {

/// A module's parameters by the form of their states. Weights of embeddings (Embedding and
/// EmbeddingBag of torch::nn) are in `fp32`: a row that few steps use has moments that are mostly
/// decay, and rounding would blur its rare gradients first.
struct StateGroups {
  /// Each parameter of the module is in one of the two; the states of `coded` may be of fewer bits.
  std::vector<at::Tensor> fp32, coded;
};
/// The groups of a module's parameters, in the order of parameters(). Submodules included.
DEMI_API StateGroups state_groups(const torch::nn::Module& module);

/// Two parameter groups, the first with fp32_states(true) if the module has an embedding, for
/// StepOptions::moments. They hold all options: hand them over without defaults.
///
///     demi::optim::AdamW optimizer(with_states_by_rule(*model, demi::optim::AdamWOptions(1e-3)),
///                                  {}, {.moments = demi::optim::Moments::bf16});
template <class Options>
std::vector<torch::optim::OptimizerParamGroup> with_states_by_rule(const torch::nn::Module& module,
                                                                   const Options& options) {
  StateGroups groups = state_groups(module);
  std::vector<torch::optim::OptimizerParamGroup> made;
  if (!groups.fp32.empty())
    made.emplace_back(std::move(groups.fp32),
                      std::make_unique<Options>(Options(options).fp32_states(true)));
  made.emplace_back(std::move(groups.coded), std::make_unique<Options>(options));
  return made;
}

}  // namespace demi::optim
