#pragma once

#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/pimpl.h>

#include "demi/core/export.h"
#include "demi/nn/cloneable.h"

namespace demi::models {

/// Sizes of an MLP.
struct MLPOptions {
  int64_t in = 4096;   // features; also the width of the hidden layers
  int64_t out = 4096;  // outputs
  int64_t layers = 3;  // Linear layers, >= 1
};

/// The AMP recipe's network: layers - 1 times Linear(in, in) and ReLU, then Linear(in, out). (N,
/// in) to (N, out).
class DEMI_API MLPImpl : public nn::Cloneable<MLPImpl> {
 public:
  explicit MLPImpl(const MLPOptions& options = {});

  /// Registers new layers, as the constructor does.
  void reset() override;

  /// (N, in) to (N, out).
  at::Tensor forward(const at::Tensor& input) { return layers_->forward(input); }

 private:
  MLPOptions options_;
  torch::nn::Sequential layers_;
};
TORCH_MODULE(MLP);

}  // namespace demi::models
