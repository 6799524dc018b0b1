#pragma once

#include <torch/optim/lbfgs.h>

#include <optional>
#include <vector>

namespace demi::checkpoint {

/// LibTorch's LBFGS in a form that LibTorch can save: tensors that a step has not set yet are
/// undefined, which an archive cannot hold. While this object lives they are empty, and the scratch
/// space of a step (`al`) is away. Any other optimizer stays unchanged.
class SavableLbfgs {
 public:
  explicit SavableLbfgs(const torch::optim::Optimizer& optimizer);
  ~SavableLbfgs();
  SavableLbfgs(const SavableLbfgs&) = delete;
  SavableLbfgs& operator=(const SavableLbfgs&) = delete;

 private:
  std::vector<torch::optim::LBFGSParamState*> states_;
  std::vector<std::optional<std::vector<at::Tensor>>> scratch_;
};

/// Makes the tensors that were empty undefined again, after a load.
void undefine_empty_lbfgs(torch::optim::Optimizer& optimizer);

}  // namespace demi::checkpoint
