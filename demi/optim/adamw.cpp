#include "demi/optim/adamw.h"

#include <torch/types.h>

#include <cmath>

namespace demi::optim {

AdamWOptions::AdamWOptions(double lr) : lr_(lr) {}

kernels::Group AdamWOptions::numbers() const {
  constexpr auto kWhere = "optim.AdamW";
  require_option(lr_ >= 0 && std::isfinite(lr_), kWhere, "lr", lr_, "0 or more, finite");
  require_option(std::get<0>(betas_) >= 0 && std::get<0>(betas_) < 1, kWhere, "beta1",
                 std::get<0>(betas_), "0 or more, under 1");
  require_option(std::get<1>(betas_) >= 0 && std::get<1>(betas_) < 1, kWhere, "beta2",
                 std::get<1>(betas_), "0 or more, under 1");
  require_option(eps_ >= 0 && std::isfinite(eps_), kWhere, "eps", eps_, "0 or more, finite");
  require_option(weight_decay_ >= 0 && std::isfinite(weight_decay_), kWhere, "weight_decay",
                 weight_decay_, "0 or more, finite");
  kernels::Group group;
  group.learning_rate = lr_;
  group.beta1 = std::get<0>(betas_);
  group.beta2 = std::get<1>(betas_);
  group.epsilon = eps_;
  group.weight_decay = weight_decay_;
  group.amsgrad = amsgrad_;
  group.maximize = maximize_;
  return group;
}

void AdamWOptions::serialize(torch::serialize::OutputArchive& archive) const {
  _TORCH_OPTIM_SERIALIZE_TORCH_ARG(lr);
  _TORCH_OPTIM_SERIALIZE_TORCH_ARG(betas);
  _TORCH_OPTIM_SERIALIZE_TORCH_ARG(eps);
  _TORCH_OPTIM_SERIALIZE_TORCH_ARG(weight_decay);
  _TORCH_OPTIM_SERIALIZE_TORCH_ARG(amsgrad);
  _TORCH_OPTIM_SERIALIZE_TORCH_ARG(maximize);
}

void AdamWOptions::serialize(torch::serialize::InputArchive& archive) {
  _TORCH_OPTIM_DESERIALIZE_TORCH_ARG(double, lr);
  _TORCH_OPTIM_DESERIALIZE_TORCH_ARG(betas_t, betas);
  _TORCH_OPTIM_DESERIALIZE_TORCH_ARG(double, eps);
  _TORCH_OPTIM_DESERIALIZE_TORCH_ARG(double, weight_decay);
  _TORCH_OPTIM_DESERIALIZE_TORCH_ARG(bool, amsgrad);
  _TORCH_OPTIM_DESERIALIZE_TORCH_ARG(bool, maximize);
}

}  // namespace demi::optim
