#include "demi/monitor/moments.h"

#include <torch/optim/adagrad.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/rmsprop.h>
#include <torch/optim/sgd.h>

#include <utility>

#include "demi/step/coded_state.h"

namespace demi::monitor {
namespace {

using NamedMoments = std::vector<std::pair<std::string, at::Tensor>>;

template <class State>
NamedMoments adam_moments(const State& state) {
  return {{"exp_avg", state.exp_avg()},
          {"exp_avg_sq", state.exp_avg_sq()},
          {"max_exp_avg_sq", state.max_exp_avg_sq()}};
}

NamedMoments moments_in(const torch::optim::OptimizerParamState& state) {
  namespace lib = torch::optim;
  if (const auto* ours = dynamic_cast<const optim::ParamState*>(&state))
    return optim::decoded_tensors(*ours);
  if (const auto* adam = dynamic_cast<const lib::AdamParamState*>(&state))
    return adam_moments(*adam);
  if (const auto* adamw = dynamic_cast<const lib::AdamWParamState*>(&state))
    return adam_moments(*adamw);
  if (const auto* sgd = dynamic_cast<const lib::SGDParamState*>(&state))
    return {{"momentum_buffer", sgd->momentum_buffer()}};
  if (const auto* rms = dynamic_cast<const lib::RMSpropParamState*>(&state))
    return {{"square_avg", rms->square_avg()},
            {"momentum_buffer", rms->momentum_buffer()},
            {"grad_avg", rms->grad_avg()}};
  if (const auto* adagrad = dynamic_cast<const lib::AdagradParamState*>(&state))
    return {{"sum", adagrad->sum()}};
  return {};
}

}  // namespace

std::vector<Moment> moments_of(torch::optim::Optimizer& optimizer) {
  std::vector<Moment> all;
  const auto& states = optimizer.state();
  for (const auto& group : optimizer.param_groups()) {
    for (const at::Tensor& parameter : group.params()) {
      const auto state = states.find(parameter.unsafeGetTensorImpl());
      if (state == states.end()) continue;
      for (const auto& [name, value] : moments_in(*state->second))
        if (value.defined() && value.is_floating_point()) all.push_back({name, parameter, value});
    }
  }
  return all;
}

}  // namespace demi::monitor
