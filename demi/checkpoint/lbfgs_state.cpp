#include "demi/checkpoint/lbfgs_state.h"

#include <utility>

namespace demi::checkpoint {
namespace {

using torch::optim::LBFGSParamState;

std::vector<LBFGSParamState*> states_of(const torch::optim::Optimizer& optimizer) {
  std::vector<LBFGSParamState*> states;
  for (const auto& item : optimizer.state())
    if (auto* state = dynamic_cast<LBFGSParamState*>(item.second.get())) states.push_back(state);
  return states;
}

// Visits the tensors that the first turn of a step sets.
template <class Visit>
void each_tensor(LBFGSParamState& state, const Visit& visit) {
  visit(state.d());
  visit(state.H_diag());
  visit(state.prev_flat_grad());
}

void undefine_empty(LBFGSParamState& state) {
  each_tensor(state, [](at::Tensor& tensor) {
    if (tensor.defined() && tensor.numel() == 0) tensor = at::Tensor();
  });
}

}  // namespace

SavableLbfgs::SavableLbfgs(const torch::optim::Optimizer& optimizer)
    : states_(states_of(optimizer)) {
  for (LBFGSParamState* state : states_) {
    scratch_.push_back(std::exchange(state->al(), std::nullopt));
    each_tensor(*state, [](at::Tensor& tensor) {
      if (!tensor.defined()) tensor = at::empty({0});
    });
  }
}

SavableLbfgs::~SavableLbfgs() {
  for (std::size_t i = 0; i < states_.size(); ++i) {
    states_[i]->al() = std::move(scratch_[i]);
    undefine_empty(*states_[i]);
  }
}

void undefine_empty_lbfgs(torch::optim::Optimizer& optimizer) {
  for (LBFGSParamState* state : states_of(optimizer)) undefine_empty(*state);
}

}  // namespace demi::checkpoint
