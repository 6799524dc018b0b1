#pragma once

#include <torch/nn/module.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/pimpl.h>

#include "demi/core/export.h"

namespace demi::models {

/// Sizes of an MLP.
struct MLPOptions {
  int64_t in = 4096;   // features; also the width of the hidden layers
  int64_t out = 4096;  // outputs
  int64_t layers = 3;  // Linear layers, >= 1
};

/// The AMP recipe's network: layers - 1 times Linear(in, in) and ReLU, then Linear(in, out). (N,
/// in) to (N, out).
class DEMI_API MLPImpl : public torch::nn::Module {
 public:
  explicit MLPImpl(const MLPOptions& options = {});

  /// (N, in) to (N, out).
  at::Tensor forward(const at::Tensor& input) { return layers_->forward(input); }

 private:
  torch::nn::Sequential layers_;
};
TORCH_MODULE(MLP);

}  // namespace demi::models
