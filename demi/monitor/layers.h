#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>
#include <torch/nn/module.h>

#include <map>
#include <string>
#include <vector>

#include "demi/core/export.h"

namespace demi::monitor {

/// A module that has parameters of its own.
struct Layer {
  std::string name;  // as in named_modules(): "features.0"; "model" for the model itself
  std::vector<at::Tensor> parameters;
};

/// The layers of a model, found by their parameters: LibTorch's C++ modules have no hooks, but an
/// op's arguments show whose weights it reads, itself or in a view. Holds addresses: the weights
/// must not move.
class DEMI_API Layers {
 public:
  explicit Layers(const torch::nn::Module& model);

  const std::vector<Layer>& all() const { return layers_; }
  /// The layer whose parameter the tensor is, or is a view of; -1: none.
  int find(const at::Tensor& tensor) const;

 private:
  struct Range {
    const char* end;
    int layer;
  };
  std::vector<Layer> layers_;
  std::map<const char*, Range> by_address_;
};

/// Calls use(tensor) for each defined tensor in the values, those of lists too.
template <class Values, class Use>
void for_each_tensor(const Values& values, const Use& use) {
  for (const c10::IValue& value : values) {
    if (value.isTensor()) {
      if (value.toTensor().defined()) use(value.toTensor());
    } else if (value.isTensorList()) {
      for (const at::Tensor& tensor : value.toTensorVector())
        if (tensor.defined()) use(tensor);
    } else if (value.isOptionalTensorList()) {
      for (const auto& tensor : value.toOptionalTensorVector())
        if (tensor && tensor->defined()) use(*tensor);
    } else if (value.isTuple()) {
      for (const c10::IValue& element : value.toTupleRef().elements())
        if (element.isTensor() && element.toTensor().defined()) use(element.toTensor());
    }
  }
}

}  // namespace demi::monitor
