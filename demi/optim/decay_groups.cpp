#include "demi/optim/decay_groups.h"

#include <torch/nn/modules/normalization.h>
#include <torch/types.h>

#include <unordered_set>

namespace demi::optim {

DecayGroups decay_groups(const torch::nn::Module& module) {
  DecayGroups groups;
  std::unordered_set<const at::TensorImpl*> seen;  // a shared weight belongs to one group
  for (const auto& part : module.modules()) {
    // Its weight has as many dimensions as the shape it normalises.
    const bool norm = dynamic_cast<const torch::nn::LayerNormImpl*>(part.get()) != nullptr;
    for (const auto& parameter : part->parameters(/*recurse=*/false)) {
      if (!seen.insert(parameter.unsafeGetTensorImpl()).second) continue;
      (norm || parameter.dim() <= 1 ? groups.no_decay : groups.decay).push_back(parameter);
    }
  }
  return groups;
}

}  // namespace demi::optim
