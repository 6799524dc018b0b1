#pragma once

#include <torch/nn/modules/common.h>
#include <torch/nn/modules/container/any_value.h>
#include <torch/nn/pimpl.h>

#include <cstdint>
#include <ostream>

#include "demi/core/export.h"
#include "demi/nn/cloneable.h"
#include "demi/nn/feed_forward.h"
#include "demi/nn/norm.h"
#include "demi/nn/self_attention.h"

namespace demi::nn {

/// Sizes and parts of a block.
struct TransformerBlockOptions {
  /// Elements of a token's vector, and heads of queries. `heads` divides `width`.
  std::int64_t width = 0, heads = 1;
  std::int64_t key_heads = 0;  ///< 0: as many as heads.
  std::int64_t hidden = 0;     ///< Width within the feed-forward part; 0: its default.
  bool pre_norm = true;        ///< x + f(norm(x)); false: norm(x + f(x)).
  NormKind norm = NormKind::layer_norm;
  bool norm_weight = true;                   // a factor for each feature
  double eps = 1e-5;                         ///< Epsilon of all norms.
  bool bias = true;                          ///< Biases of linear layers and LayerNorms.
  Activation activation = Activation::gelu;  // of the feed-forward layer
  /// RMSNorm over each head of q and k (SelfAttentionOptions).
  bool qk_norm = false;
  /// Dropout of the attention's weights.
  double attention_dropout = 0;
  double residual_dropout = 0;  ///< Dropout of what attention and feed-forward part add.
};

/// A residual stream whose last sum is not made yet: the norm behind it makes it in passing.
struct Residual {
  at::Tensor stream;       // (N, T, width)
  at::Tensor branch = {};  // what is to be added, of the same shape; undefined: nothing
};

/// `norm1`, `attention`, `norm2`, `feed_forward`. (N, T, width) to (N, T, width).
///
///     demi::nn::TransformerBlock block(demi::nn::TransformerBlockOptions{.width = 64, .heads = 4});
///     x = block->forward(x, {.causal = true});
///
/// In a torch::nn::Sequential the block gets the default TokenContext: it is causal.
class DEMI_API TransformerBlockImpl : public Cloneable<TransformerBlockImpl> {
 public:
  /// Throws UsageError as its parts do.
  explicit TransformerBlockImpl(const TransformerBlockOptions& options);

  /// Registers new parts, as the constructor does.
  void reset() override;
  /// Prints where the norms are.
  void pretty_print(std::ostream& stream) const override;

  /// `cache` and errors as SelfAttention's.
  at::Tensor forward(const at::Tensor& x, const TokenContext& context = {},
                     KeyValueCache* cache = nullptr);

  /// forward() in a stack of blocks, bit by bit: it leaves the last sum to the norm of the block
  /// behind, or to the model's: `norm->forward_add(x.stream, x.branch).norm`. A block with norms
  /// behind leaves none.
  Residual forward_residual(Residual x, const TokenContext& context = {},
                            KeyValueCache* cache = nullptr);

  Norm norm1{nullptr}, norm2{nullptr};
  SelfAttention attention{nullptr};
  FeedForward feed_forward{nullptr};

 protected:
  FORWARD_HAS_DEFAULT_ARGS({1, torch::nn::AnyValue(TokenContext())},
                           {2, torch::nn::AnyValue(static_cast<KeyValueCache*>(nullptr))})

 private:
  TransformerBlockOptions options_;
};
TORCH_MODULE(TransformerBlock);

}  // namespace demi::nn
