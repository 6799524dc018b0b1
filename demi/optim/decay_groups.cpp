#include "demi/optim/decay_groups.h"

#include <torch/nn/modules/normalization.h>
#include <torch/types.h>

#include <unordered_set>

namespace demi::optim {

namespace {

/// Goes by children(), since modules() needs a module that a shared_ptr holds.
void sort_parameters(const torch::nn::Module& module, DecayGroups& groups,
                     std::unordered_set<const at::TensorImpl*>& seen) {
  // A LayerNorm's weight has as many dimensions as the shape that it normalises.
  const bool norm = dynamic_cast<const torch::nn::LayerNormImpl*>(&module) != nullptr;
  for (const auto& parameter : module.parameters(/*recurse=*/false)) {
    if (!seen.insert(parameter.unsafeGetTensorImpl()).second) continue;
    (norm || parameter.dim() <= 1 ? groups.no_decay : groups.decay).push_back(parameter);
  }
  for (const auto& child : module.children()) sort_parameters(*child, groups, seen);
}

}  // namespace

DecayGroups decay_groups(const torch::nn::Module& module) {
  DecayGroups groups;
  std::unordered_set<const at::TensorImpl*> seen;  // a shared weight belongs to one group
  sort_parameters(module, groups, seen);
  return groups;
}

}  // namespace demi::optim
