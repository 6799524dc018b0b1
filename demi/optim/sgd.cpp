#include "demi/optim/sgd.h"

#include <torch/types.h>

#include <cmath>

namespace demi::optim {

SGDOptions::SGDOptions(double lr) : lr_(lr) {}

kernels::Group SGDOptions::numbers() const {
  constexpr auto kWhere = "optim.SGD";
  require_option(lr_ >= 0 && std::isfinite(lr_), kWhere, "lr", lr_, "0 or more, finite");
  require_option(momentum_ >= 0 && std::isfinite(momentum_), kWhere, "momentum", momentum_,
                 "0 or more, finite");
  require_option(std::isfinite(dampening_), kWhere, "dampening", dampening_, "finite");
  require_option(weight_decay_ >= 0 && std::isfinite(weight_decay_), kWhere, "weight_decay",
                 weight_decay_, "0 or more, finite");
  require_option(!nesterov_ || (momentum_ > 0 && dampening_ == 0), kWhere, "momentum with nesterov",
                 momentum_, "above 0, with a dampening of 0");
  kernels::Group group;
  group.learning_rate = lr_;
  group.momentum = momentum_;
  group.dampening = dampening_;
  group.weight_decay = weight_decay_;
  group.nesterov = nesterov_;
  group.maximize = maximize_;
  return group;
}

void SGDOptions::serialize(torch::serialize::OutputArchive& archive) const {
  _TORCH_OPTIM_SERIALIZE_TORCH_ARG(lr);
  _TORCH_OPTIM_SERIALIZE_TORCH_ARG(momentum);
  _TORCH_OPTIM_SERIALIZE_TORCH_ARG(dampening);
  _TORCH_OPTIM_SERIALIZE_TORCH_ARG(weight_decay);
  _TORCH_OPTIM_SERIALIZE_TORCH_ARG(nesterov);
  _TORCH_OPTIM_SERIALIZE_TORCH_ARG(maximize);
}

void SGDOptions::serialize(torch::serialize::InputArchive& archive) {
  _TORCH_OPTIM_DESERIALIZE_TORCH_ARG(double, lr);
  _TORCH_OPTIM_DESERIALIZE_TORCH_ARG(double, momentum);
  _TORCH_OPTIM_DESERIALIZE_TORCH_ARG(double, dampening);
  _TORCH_OPTIM_DESERIALIZE_TORCH_ARG(double, weight_decay);
  _TORCH_OPTIM_DESERIALIZE_TORCH_ARG(bool, nesterov);
  _TORCH_OPTIM_DESERIALIZE_TORCH_ARG(bool, maximize);
}

}  // namespace demi::optim
