#include "demi/monitor/repeated_batch.h"

#include <torch/types.h>

#include <map>
#include <string>

#include "demi/checkpoint/prepared_state.h"
#include "demi/monitor/unobserved.h"

namespace demi::monitor {

bool all_finite(const std::vector<at::Tensor>& tensors) {
  const at::NoGradGuard no_grad;
  std::map<std::string, std::vector<at::Tensor>> extremes;
  for (const at::Tensor& tensor : tensors) {
    if (!tensor.defined() || !tensor.is_floating_point()) continue;
    const at::Tensor values = values_of(tensor);
    if (values.numel() == 0) continue;
    const auto [least, greatest] = at::aminmax(values);
    auto& of_device = extremes[tensor.device().str()];
    of_device.push_back(least.to(c10::kDouble));
    of_device.push_back(greatest.to(c10::kDouble));
  }
  for (const auto& [device, numbers] : extremes)
    if (!at::stack(numbers).isfinite().all().item<bool>()) return false;
  return true;
}

std::vector<at::Tensor> gradients_of(const torch::nn::Module& module) {
  std::vector<at::Tensor> gradients;
  for (const at::Tensor& p : module.parameters()) gradients.push_back(p.grad());
  return gradients;
}

Surroundings Surroundings::of(const torch::nn::Module& module) {
  const at::NoGradGuard no_grad;
  Surroundings now;
  for (const at::Tensor& buffer : module.buffers())
    now.buffers.emplace_back(buffer, buffer.detach().clone());
  now.random = checkpoint::random_states();
  return now;
}

void Surroundings::put_back() const {
  const at::NoGradGuard no_grad;
  for (const auto& [buffer, copy] : buffers) buffer.detach().copy_(copy);
  checkpoint::NamedTensors states;
  for (const auto& [name, state] : random) states[name] = state.clone();
  if (const auto set = checkpoint::prepare_random(states)) set();
}

RepeatGuard::RepeatGuard(const torch::nn::Module& module)
    : parameters_(module.parameters()), now_(Surroundings::of(module)) {
  for (const at::Tensor& p : parameters_) gradients_.push_back(p.grad());
}

RepeatGuard::~RepeatGuard() {
  for (std::size_t i = 0; i < parameters_.size(); ++i)
    parameters_[i].mutable_grad() = gradients_[i];
  now_.put_back();
}

void RepeatGuard::begin_again(const Surroundings& before) {
  for (const at::Tensor& p : parameters_) p.mutable_grad().reset();
  before.put_back();
}

}  // namespace demi::monitor
