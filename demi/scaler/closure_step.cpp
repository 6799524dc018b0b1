#include "demi/scaler/closure_step.h"

#include <torch/optim/lbfgs.h>
#include <torch/types.h>

namespace demi {
namespace {

bool is_lbfgs(torch::optim::Optimizer& optimizer) {
  return dynamic_cast<torch::optim::LBFGS*>(&optimizer) != nullptr;
}

at::Tensor own_copy(const at::Tensor& tensor) { return tensor.defined() ? tensor.clone() : tensor; }

template <typename List>
List own_copies(List list) {
  for (auto& tensor : list) tensor = own_copy(tensor);
  return list;
}

/// LBFGS changes tensors of its state in place, so a copy that shares them would change too.
std::unique_ptr<torch::optim::OptimizerParamState> deep_copy(
    const torch::optim::OptimizerParamState& state) {
  auto copy = std::make_unique<torch::optim::LBFGSParamState>(
      static_cast<const torch::optim::LBFGSParamState&>(state));
  copy->d(own_copy(copy->d())).H_diag(own_copy(copy->H_diag()));
  copy->prev_flat_grad(own_copy(copy->prev_flat_grad()));
  copy->old_dirs(own_copies(copy->old_dirs())).old_stps(own_copies(copy->old_stps()));
  copy->ro(own_copies(copy->ro()));
  if (copy->al()) copy->al(own_copies(*copy->al()));
  return copy;
}

}  // namespace

OptimizerSnapshot::OptimizerSnapshot(torch::optim::Optimizer& optimizer) : optimizer_(optimizer) {
  const at::NoGradGuard no_grad;
  for (const auto& group : optimizer.param_groups())
    for (const auto& parameter : group.params()) parameters_.push_back(parameter.detach().clone());
  if (is_lbfgs(optimizer)) {
    for (const auto& [key, state] : optimizer.state()) lbfgs_states_[key] = deep_copy(*state);
    return;
  }
  torch::serialize::OutputArchive archive;
  optimizer.save(archive);
  archive.save_to(archive_);
}

void OptimizerSnapshot::restore() {
  const at::NoGradGuard no_grad;
  auto saved = parameters_.begin();
  for (auto& group : optimizer_.param_groups())
    for (auto& parameter : group.params()) parameter.copy_(*saved++);
  if (is_lbfgs(optimizer_)) {
    optimizer_.state() = std::move(lbfgs_states_);
    return;
  }
  optimizer_.state().clear();
  torch::serialize::InputArchive archive;
  archive.load_from(archive_);
  optimizer_.load(archive);
}

}  // namespace demi
