#include "demi/step/param_state.h"

#include <torch/serialize/archive.h>
#include <torch/types.h>

namespace demi::optim {

at::Tensor& ParamState::operator[](std::string_view name) {
  if (name == "step") return step;
  if (name == "master") return master;
  if (name == kRemainder) return remainder;
  for (auto& [known, tensor] : of_rule_)
    if (known == name) return tensor;
  return of_rule_.emplace_back(name, at::Tensor()).second;
}

void ParamState::erase(std::string_view name) {
  std::erase_if(of_rule_, [&](const auto& one) { return one.first == name; });
}

std::vector<std::pair<std::string, at::Tensor>> ParamState::tensors() const {
  std::vector<std::pair<std::string, at::Tensor>> defined;
  const auto add = [&](const std::string& name, const at::Tensor& tensor) {
    if (tensor.defined()) defined.emplace_back(name, tensor);
  };
  add("step", step);
  for (const auto& [name, tensor] : of_rule_) add(name, tensor);
  add("master", master);
  add(kRemainder, remainder);
  return defined;
}

void ParamState::serialize(torch::serialize::InputArchive& archive) {
  for (const std::string& name : archive.keys())
    archive.try_read(name, (*this)[name], /*is_buffer=*/true);
}

void ParamState::serialize(torch::serialize::OutputArchive& archive) const {
  for (const auto& [name, tensor] : tensors()) archive.write(name, tensor, /*is_buffer=*/true);
}

}  // namespace demi::optim
