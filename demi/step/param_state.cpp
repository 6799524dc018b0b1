#include "demi/step/param_state.h"

#include <torch/serialize/archive.h>
#include <torch/types.h>

namespace demi::optim {
namespace {

struct Field {
  const char* name;
  at::Tensor ParamState::*tensor;
};

constexpr Field kFields[] = {{"step", &ParamState::step},
                             {"momentum_buffer", &ParamState::momentum_buffer},
                             {"exp_avg", &ParamState::exp_avg},
                             {"exp_avg_sq", &ParamState::exp_avg_sq},
                             {"max_exp_avg_sq", &ParamState::max_exp_avg_sq},
                             {"master", &ParamState::master}};

}  // namespace

std::vector<std::pair<std::string, at::Tensor>> ParamState::tensors() const {
  std::vector<std::pair<std::string, at::Tensor>> defined;
  for (const auto& [name, tensor] : kFields)
    if ((this->*tensor).defined()) defined.emplace_back(name, this->*tensor);
  return defined;
}

at::Tensor* ParamState::find(const std::string& name) {
  for (const auto& [known, tensor] : kFields)
    if (name == known) return &(this->*tensor);
  return nullptr;
}

void ParamState::serialize(torch::serialize::InputArchive& archive) {
  for (const auto& [name, tensor] : kFields)
    archive.try_read(name, this->*tensor, /*is_buffer=*/true);
}

void ParamState::serialize(torch::serialize::OutputArchive& archive) const {
  for (const auto& [name, tensor] : tensors()) archive.write(name, tensor, /*is_buffer=*/true);
}

}  // namespace demi::optim
