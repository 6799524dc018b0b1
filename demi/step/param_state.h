#pragma once

#include <ATen/core/Tensor.h>
#include <torch/optim/optimizer.h>

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "demi/core/export.h"

namespace demi::optim {

/// The name of ParamState::remainder.
inline constexpr auto kRemainder = "remainder";

/// An optimizer's state of one parameter.
///
///     state["exp_avg"]   // fp32, with the parameter's shape and strides
///
/// The names are torch.optim's: momentum_buffer of SGD; exp_avg, exp_avg_sq and max_exp_avg_sq of
/// Adam and AdamW, the first two of LAMB, the first of Lion.
struct DEMI_API ParamState : public torch::optim::OptimizerCloneableParamState<ParamState> {
  at::Tensor step;       // int64, (): updates taken
  at::Tensor master;     // fp32, of a 16-bit parameter: the weights that are updated
  at::Tensor remainder;  // in place of master: what the parameter lacks (coded_weight.h)

  /// The state of the update rule that has the name. Undefined until the rule has made it.
  at::Tensor& operator[](std::string_view name);

  /// Takes that state out.
  void erase(std::string_view name);

  /// The defined tensors with their names, `step` first, `master` or `remainder` last.
  std::vector<std::pair<std::string, at::Tensor>> tensors() const;

  void serialize(torch::serialize::InputArchive& archive) override;
  void serialize(torch::serialize::OutputArchive& archive) const override;

 private:
  friend class StateWatch;

  std::vector<std::pair<std::string, at::Tensor>> of_rule_;
};

}  // namespace demi::optim
