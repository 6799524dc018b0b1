#pragma once

#include <torch/optim/optimizer.h>

#include <memory>
#include <sstream>
#include <vector>

namespace demi {

/// Parameters and optimizer state from before a step, which are restored if the step must change
/// nothing.
class OptimizerSnapshot {
 public:
  explicit OptimizerSnapshot(torch::optim::Optimizer& optimizer);
  void restore();

 private:
  using States = ska::flat_hash_map<void*, std::unique_ptr<torch::optim::OptimizerParamState>>;

  torch::optim::Optimizer& optimizer_;
  std::vector<at::Tensor> parameters_;  // copies, in the order of groups and parameters
  States lbfgs_states_;                 // of LBFGS, whose undefined tensors no archive can hold
  std::stringstream archive_;           // of any other optimizer, as torch::save writes it
};

}  // namespace demi
