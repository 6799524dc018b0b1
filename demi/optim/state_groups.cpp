#include "demi/optim/state_groups.h"

#include <torch/nn/modules/embedding.h>
#include <torch/types.h>

#include <unordered_set>

namespace demi::optim {
namespace {

using Taken = std::unordered_set<const at::TensorImpl*>;

bool is_embedding(const torch::nn::Module& module) {
  return dynamic_cast<const torch::nn::EmbeddingImpl*>(&module) != nullptr ||
         dynamic_cast<const torch::nn::EmbeddingBagImpl*>(&module) != nullptr;
}

/// Takes the parameters of all embeddings, or of all other modules, that were not taken before.
/// Goes by children(), since modules() needs a module that a shared_ptr holds.
void take(const torch::nn::Module& module, bool embeddings, Taken& taken,
          std::vector<at::Tensor>& to) {
  if (is_embedding(module) == embeddings)
    for (const auto& parameter : module.parameters(/*recurse=*/false))
      if (taken.insert(parameter.unsafeGetTensorImpl()).second) to.push_back(parameter);
  for (const auto& child : module.children()) take(*child, embeddings, taken, to);
}

}  // namespace

StateGroups state_groups(const torch::nn::Module& module) {
  StateGroups groups;
  Taken taken;
  take(module, true, taken, groups.fp32);  // first: a weight that is tied to one is an embedding's
  take(module, false, taken, groups.coded);
  return groups;
}

}  // namespace demi::optim
