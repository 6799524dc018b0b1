#pragma once

#include <torch/nn/modules/linear.h>
#include <torch/nn/pimpl.h>

#include <cstdint>
#include <ostream>

#include "demi/core/export.h"
#include "demi/nn/cloneable.h"

namespace demi::nn {

/// swiglu: silu(gate(x)) * up(x) (Shazeer, 2020); squared_relu: relu(x)^2 (So et al., 2021).
enum class Activation { gelu, gelu_tanh, swiglu, squared_relu };

/// Sizes and activation of a feed-forward layer.
struct FeedForwardOptions {
  std::int64_t width = 0;  // of a token's vector
  /// 0: 4 width; with swiglu 8/3 of it, rounded up to a multiple of 64.
  std::int64_t hidden = 0;
  Activation activation = Activation::gelu;  // between `up` and `down`
  bool bias = true;                          // of the linear layers
  double dropout = 0;                        ///< Dropout of the result.
};

/// The width between up and down. Throws UsageError for a width below 1 or a hidden one below 0.
DEMI_API std::int64_t hidden_width(const FeedForwardOptions& options);

/// down(activation(up(x))). (*, width) to (*, width).
class DEMI_API FeedForwardImpl : public Cloneable<FeedForwardImpl> {
 public:
  explicit FeedForwardImpl(const FeedForwardOptions& options);

  /// Registers new layers, as the constructor does.
  void reset() override;
  /// Its sizes and activation.
  void pretty_print(std::ostream& stream) const override;

  /// (*, width) to (*, width), in the input's dtype. Throws UsageError for other inputs.
  at::Tensor forward(const at::Tensor& x);

  torch::nn::Linear gate{nullptr}, up{nullptr}, down{nullptr};  // gate: swiglu alone

 private:
  at::Tensor activated(const at::Tensor& x);

  FeedForwardOptions options_;
};
TORCH_MODULE(FeedForward);

}  // namespace demi::nn
