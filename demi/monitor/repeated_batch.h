#pragma once

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>

#include <utility>
#include <vector>

#include "demi/checkpoint/safetensors.h"

namespace demi::monitor {

/// Whether no floating point number in the tensors is Inf or NaN. Reads each device once.
bool all_finite(const std::vector<at::Tensor>& tensors);

/// The gradients of the module's parameters; undefined for those without.
std::vector<at::Tensor> gradients_of(const torch::nn::Module& module);

/// The state that a repeated batch changes, apart from the gradients: copies of buffers, and the
/// states of the random generators.
struct Surroundings {
  std::vector<std::pair<at::Tensor, at::Tensor>> buffers;  // and their copies
  checkpoint::NamedTensors random;

  static Surroundings of(const torch::nn::Module& module);
  void put_back() const;
};

/// Allows repeating batches while it lives. Its end restores gradients, buffers and random
/// generators as they were when it was made.
class RepeatGuard {
 public:
  explicit RepeatGuard(const torch::nn::Module& module);
  ~RepeatGuard();
  RepeatGuard(const RepeatGuard&) = delete;
  RepeatGuard& operator=(const RepeatGuard&) = delete;

  /// Drops the gradients and restores the surroundings of the step's beginning.
  void begin_again(const Surroundings& before);

 private:
  std::vector<at::Tensor> parameters_, gradients_;
  Surroundings now_;
};

}  // namespace demi::monitor
