#include "demi/optim/export_fp32.h"

#include <torch/nn/module.h>
#include <torch/types.h>

#include "demi/step/coded_weight.h"
#include "demi/step/param_state.h"

namespace demi::optim {

at::Tensor fp32_weight(const torch::optim::Optimizer& optimizer, const at::Tensor& parameter) {
  const auto found = optimizer.state().find(parameter.unsafeGetTensorImpl());
  if (found == optimizer.state().end()) return {};
  const auto* state = dynamic_cast<const ParamState*>(found->second.get());
  if (!state) return {};
  if (state->remainder.defined()) return converted_weight(parameter, state->remainder);
  if (!state->master.defined()) return {};
  // Elements that the program has written to since count in place of the master's.
  const at::NoGradGuard no_grad;
  const at::Tensor same = state->master.to(parameter.scalar_type()) == parameter;
  return at::where(same, state->master, parameter.to(at::kFloat));
}

std::map<std::string, at::Tensor> export_fp32(const torch::nn::Module& module,
                                              const torch::optim::Optimizer& optimizer) {
  std::map<std::string, at::Tensor> all;
  for (const auto& item : module.named_parameters()) {
    const at::Tensor fp32 = fp32_weight(optimizer, item.value());
    all[item.key()] = fp32.defined() ? fp32 : item.value().detach();
  }
  for (const auto& item : module.named_buffers()) all[item.key()] = item.value().detach();
  return all;
}

}  // namespace demi::optim
