#pragma once

#include <torch/optim/optimizer.h>

#include <memory>
#include <sstream>
#include <vector>

namespace demi {

/// Parameters and optimizer state as they were, for a step that turns out to be one that must
/// change nothing.
class OptimizerSnapshot {
 public:
  explicit OptimizerSnapshot(torch::optim::Optimizer& optimizer);
  void restore();

 private:
  using States = ska::flat_hash_map<void*, std::unique_ptr<torch::optim::OptimizerParamState>>;

  torch::optim::Optimizer& optimizer_;
  std::vector<at::Tensor> parameters_;  // copies, in the order of groups and parameters
  States lbfgs_states_;        // LBFGS: its state holds undefined tensors, which no archive takes
  std::stringstream archive_;  // all others: as torch::save writes it
};

}  // namespace demi
