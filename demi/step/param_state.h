#pragma once

#include <ATen/core/Tensor.h>
#include <torch/optim/optimizer.h>

#include <string>
#include <utility>
#include <vector>

#include "demi/core/export.h"

namespace demi::optim {

/// An optimizer's state of one parameter. All fp32 with the parameter's shape and strides, except
/// `step`. Undefined: not used by the update rule.
struct DEMI_API ParamState : public torch::optim::OptimizerCloneableParamState<ParamState> {
  at::Tensor step;             // int64, (): updates taken
  at::Tensor momentum_buffer;  // SGD
  at::Tensor exp_avg;          // Adam, AdamW, LAMB, Lion
  at::Tensor exp_avg_sq;       // Adam, AdamW, LAMB
  at::Tensor max_exp_avg_sq;   // amsgrad
  at::Tensor master;           // of a 16-bit parameter: the weights that are updated

  /// The defined tensors with their names.
  std::vector<std::pair<std::string, at::Tensor>> tensors() const;
  /// The field of that name, or null.
  at::Tensor* find(const std::string& name);

  void serialize(torch::serialize::InputArchive& archive) override;
  void serialize(torch::serialize::OutputArchive& archive) const override;
};

}  // namespace demi::optim
