#pragma once

#include <gtest/gtest.h>
#include <torch/torch.h>
#include <unistd.h>

#include <filesystem>
#include <memory>
#include <string>

#include "demi/backends/backends.h"
#include "demi/distributed/ranks_testing.h"

namespace demi::train::testing {

/// Ranks that are threads of this process. LibTorch's settings are the process's: what the ranks
/// set while they meet each other is put back.
class OnRanks : public ::testing::Test {
 protected:
  OnRanks() { std::filesystem::remove_all(folder_); }
  ~OnRanks() override { std::filesystem::remove_all(folder_); }

  const std::filesystem::path folder_ =
      std::filesystem::temp_directory_path() / ("demi-on-ranks-" + std::to_string(::getpid()));

 private:
  BackendsGuard settings_{{.cuda_matmul_allow_tf32 = false, .cudnn_allow_tf32 = false}};
};

/// Wraps, for options that hold a pointer, a group that ends with its rank.
inline std::shared_ptr<distributed::ProcessGroup> shared_group(distributed::ProcessGroup& group) {
  return {&group, [](distributed::ProcessGroup*) {}};
}

/// Weights that are no function of LibTorch's random numbers.
inline void set_weights(const torch::nn::Module& module) {
  const torch::NoGradGuard no_grad;
  double phase = 0;
  for (at::Tensor& p : module.parameters())
    p.copy_((at::arange(p.numel(), at::kDouble) * 0.7 + ++phase).sin().view(p.sizes()) * 0.5);
}

}  // namespace demi::train::testing
