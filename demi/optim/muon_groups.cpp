#include "demi/optim/muon_groups.h"

#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/normalization.h>
#include <torch/types.h>

#include <algorithm>
#include <unordered_set>

#include "demi/core/error.h"

namespace demi::optim {
namespace {

using Known = std::unordered_set<const at::TensorImpl*>;

template <class... Kinds>
bool is_one_of(const torch::nn::Module& module) {
  return ((dynamic_cast<const Kinds*>(&module) != nullptr) || ...);
}

/// The weights of embeddings and layer norms into `others`, and into `head` the weight of the last
/// module with parameters, if it can be a head. Goes by children(), since modules() needs a module
/// that a shared_ptr holds.
void visit(const torch::nn::Module& module, Known& others, const at::TensorImpl*& head) {
  using namespace torch::nn;
  // A LayerNorm's weight has as many dimensions as the shape that it normalises.
  const bool is_other = is_one_of<EmbeddingImpl, EmbeddingBagImpl, LayerNormImpl>(module);
  const bool may_be_head = is_one_of<LinearImpl, Conv1dImpl, Conv2dImpl, Conv3dImpl>(module);
  const auto parameters = module.named_parameters(/*recurse=*/false);
  if (!parameters.is_empty()) head = nullptr;
  if (const at::Tensor* weight = parameters.find("weight")) {
    if (is_other) others.insert(weight->unsafeGetTensorImpl());
    if (may_be_head) head = weight->unsafeGetTensorImpl();
  }
  for (const auto& child : module.children()) visit(*child, others, head);
}

}  // namespace

MuonParameters muon_parameters(const torch::nn::Module& module,
                               const std::vector<at::Tensor>& heads) {
  Known others;
  const at::TensorImpl* head = nullptr;
  visit(module, others, head);
  const std::vector<at::Tensor> all = module.parameters();
  for (const at::Tensor& named : heads) {
    const auto is_it = [&](const at::Tensor& one) { return one.is_same(named); };
    if (std::ranges::none_of(all, is_it))
      refuse({.where = "optim.muon_parameters",
              .what = "a head is no parameter of the module",
              .seen = named.defined() ? c10::str("shape ", named.sizes()) : "undefined",
              .accepted = "tensors of module.parameters()"});
    others.insert(named.unsafeGetTensorImpl());
  }
  if (heads.empty() && head != nullptr) others.insert(head);
  MuonParameters found;
  Known seen;
  for (const at::Tensor& one : all) {
    if (!seen.insert(one.unsafeGetTensorImpl()).second) continue;
    const bool is_other = one.dim() < 2 || others.contains(one.unsafeGetTensorImpl());
    (is_other ? found.others : found.hidden).push_back(one);
  }
  return found;
}

}  // namespace demi::optim
