#pragma once

#include <torch/nn/module.h>

#include <string>
#include <unordered_set>
#include <utility>
#include <vector>

namespace demi::tensor {

/// A tensor under the first of its names in a module.
struct NamedTensor {
  std::string name;
  at::Tensor tensor;
};

/// The defined ones of `named`, in its order, each tensor once. torch::nn::Module names a tensor
/// once for each way to it, so those of a module that stands in the model twice, and tied weights,
/// have several names; in Python, parameters() has them once.
template <class OrderedDict>
std::vector<NamedTensor> each_once(const OrderedDict& named) {
  std::vector<NamedTensor> tensors;
  std::unordered_set<const at::TensorImpl*> seen;
  for (const auto& item : named)
    if (item.value().defined() && seen.insert(item.value().unsafeGetTensorImpl()).second)
      tensors.push_back({item.key(), item.value()});
  return tensors;
}

inline std::vector<NamedTensor> parameters_once(const torch::nn::Module& module) {
  return each_once(module.named_parameters());
}

inline std::vector<NamedTensor> buffers_once(const torch::nn::Module& module) {
  return each_once(module.named_buffers());
}

/// The tensors without their names.
inline std::vector<at::Tensor> without_names(std::vector<NamedTensor> named) {
  std::vector<at::Tensor> tensors;
  for (NamedTensor& one : named) tensors.push_back(std::move(one.tensor));
  return tensors;
}

}  // namespace demi::tensor
