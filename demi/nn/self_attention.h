#pragma once

#include <torch/nn/modules/common.h>
#include <torch/nn/modules/container/any_value.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/pimpl.h>

#include <cstdint>
#include <ostream>

#include "demi/core/export.h"
#include "demi/nn/cloneable.h"
#include "demi/nn/key_value_cache.h"
#include "demi/nn/norm.h"
#include "demi/nn/rotary.h"

namespace demi::nn {

/// The tokens that a token of a batch sees, and their positions.
struct TokenContext {
  bool causal = true;          // a token sees those before it and itself alone
  at::Tensor mask = {};        ///< As demi::attention's.
  at::Tensor cu_seqlens = {};  ///< As demi::attention's.
  RotaryAngles rotary = {};    ///< Angles for the head size; none: no rotary positions.
};

/// Sizes and parts of a self-attention layer.
struct SelfAttentionOptions {
  /// Elements of a token's vector, and heads of queries. `heads` divides `width`.
  std::int64_t width = 0, heads = 1;
  std::int64_t key_heads = 0;  ///< A divisor of heads; 0: as many as heads.
  bool bias = true;            ///< Biases of both linear layers.
  bool qk_norm = false;        ///< RMSNorm over each head of q and k, before rotary positions.
  /// With qk_norm: a factor for each feature of a head.
  bool qk_norm_weight = true;
  /// Epsilon of the norms of q and k.
  double qk_norm_eps = 1e-5;
  double attention_dropout = 0;  ///< Dropout of the weights.
  double residual_dropout = 0;   ///< Dropout of the result.
};

/// Self-attention: `qkv` is one linear layer whose rows are q, k, v, heads one after the other;
/// `out` the projection. (N, T, width) to (N, T, width).
class DEMI_API SelfAttentionImpl : public Cloneable<SelfAttentionImpl> {
 public:
  /// Throws UsageError if heads do not divide the width, or key heads the heads.
  explicit SelfAttentionImpl(const SelfAttentionOptions& options);

  /// Registers new layers, as the constructor does.
  void reset() override;
  /// Its sizes.
  void pretty_print(std::ostream& stream) const override;

  /// With a `cache` x are the tokens after those in it, and are added: they see all of these, and,
  /// if causal, of each other those before. Rotary angles are those of x's own positions. Throws
  /// UsageError, besides, for cu_seqlens with a cache.
  at::Tensor forward(const at::Tensor& x, const TokenContext& context = {},
                     KeyValueCache* cache = nullptr);

  torch::nn::Linear qkv{nullptr}, out{nullptr};
  /// Norms of queries and keys, per head; undefined without qk_norm.
  Norm q_norm{nullptr}, k_norm{nullptr};

 protected:
  FORWARD_HAS_DEFAULT_ARGS({1, torch::nn::AnyValue(TokenContext())},
                           {2, torch::nn::AnyValue(static_cast<KeyValueCache*>(nullptr))})

 private:
  SelfAttentionOptions options_;
};
TORCH_MODULE(SelfAttention);

}  // namespace demi::nn
