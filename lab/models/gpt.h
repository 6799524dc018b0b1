#pragma once

#include <torch/nn/modules/common.h>
#include <torch/nn/modules/container/any_value.h>
#include <torch/nn/modules/container/modulelist.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/pimpl.h>

#include <optional>
#include <vector>

#include "demi/core/export.h"
#include "demi/nn/cloneable.h"
#include "demi/nn/key_value_cache.h"
#include "demi/nn/linear_cross_entropy.h"
#include "demi/nn/transformer_block.h"
#include "demi/recompute/recompute.h"

namespace demi::models {

/// gpt2: learned positions, LayerNorm, GELU (tanh), head tied to the embedding (Radford et al.,
/// 2019). llama: rotary positions, RMSNorm, SwiGLU, no biases, a head of its own (Touvron et al.,
/// 2023). nanochat: llama's with squared ReLU, QK-norm, norms without weights, also of the
/// embedding, and soft-capped logits, 15 tanh(logits / 15).
enum class GPTForm { gpt2, llama, nanochat };

/// Sizes and form of a GPT.
struct GPTOptions {
  int64_t vocabulary = 50257, context = 1024;  // tokens known, tokens of a row at most
  /// Width of a token's vector; number of blocks; heads of queries, which divide the width.
  int64_t width = 768, layers = 12, heads = 12;
  int64_t key_heads = 0;         // 0: as many as heads
  int64_t hidden = 0;            // of the feed-forward part; 0: nn::FeedForwardOptions' default
  GPTForm form = GPTForm::gpt2;  // which parts its blocks are made of
  bool bias = true;              // gpt2 alone
  double dropout = 0;            // of embeddings, attention's weights, and what each part adds
  double eps = 1e-5;             // of all norms
  double rope_theta = 10000;     // of rotary positions, more than 0
  std::optional<bool> tied_head = {};  // to the embedding; empty: in gpt2 alone
  /// Each block makes its activations again in backward, and keeps this; empty: it keeps them.
  std::optional<Keep> recompute = {};
};

/// The width within the feed-forward part.
DEMI_API int64_t hidden_width(const GPTOptions& options);

/// Multiplications and additions of training on one token of a row of `tokens`, forward and
/// backward: 6 N + 12 L T d, where N counts the weights of matrix products, the head among them,
/// and attention is not halved for its mask (Chowdhery et al., 2022, "PaLM", appendix B). What
/// recomputation adds is not the model's.
DEMI_API double training_flop(const GPTOptions& options, int64_t tokens);

/// A language model that is trained on the next token. Initial weights: normal(0, 0.02), those of
/// projections onto the residual stream normal(0, 0.02 / sqrt(2 layers)), biases 0.
class DEMI_API GPTImpl : public nn::Cloneable<GPTImpl> {
 public:
  explicit GPTImpl(const GPTOptions& options = {});

  /// Registers new parts with initial weights, as the constructor does.
  void reset() override;

  /// Tokens (N, T) int64, T at most `context`, to logits (N, T, vocabulary). `cu_seqlens` as
  /// demi::attention has it: positions restart with each document. Throws UsageError for a row that
  /// is too long; a token beyond the vocabulary is the embedding's error.
  at::Tensor forward(const at::Tensor& tokens, const at::Tensor& cu_seqlens = {});

  /// The mean cross entropy of `targets` (N, T), where -100 does not count, by
  /// demi::linear_cross_entropy_and_right: the logits are never held whole.
  LossAndRight loss_and_right(const at::Tensor& tokens, const at::Tensor& targets,
                              double label_smoothing = 0, const at::Tensor& cu_seqlens = {});
  /// The loss of loss_and_right() alone, without label smoothing.
  at::Tensor loss(const at::Tensor& tokens, const at::Tensor& targets,
                  const at::Tensor& cu_seqlens = {}) {
    return loss_and_right(tokens, targets, 0, cu_seqlens).loss;
  }

  /// Keys and values of the tokens so far, one a layer; empty at first.
  using Cache = std::vector<nn::KeyValueCache>;
  /// An empty cache, for next().
  Cache new_cache() const;

  /// Logits (N, vocabulary) of the token after `tokens` (N, T), which follow those of the cache and
  /// are added to it. For inference, under a NoGradGuard. Throws UsageError, besides, if they and
  /// those before them are more than `context`: begin anew with clear().
  at::Tensor next(const at::Tensor& tokens, Cache& cache);

  /// The sizes that it was made with.
  const GPTOptions& options() const { return options_; }

  /// What the head reads: (N, T, width).
  at::Tensor hidden(const at::Tensor& tokens, const at::Tensor& cu_seqlens = {});

 protected:
  FORWARD_HAS_DEFAULT_ARGS({1, torch::nn::AnyValue(at::Tensor())})

 private:
  const at::Tensor& head_weight() const;
  at::Tensor capped(const at::Tensor& logits) const;
  void initialise();
  void require_rows(const at::Tensor& tokens, int64_t past) const;
  at::Tensor through_blocks(const at::Tensor& tokens, const at::Tensor& positions,
                            const at::Tensor& cu_seqlens, Cache* cache);

  GPTOptions options_;
  torch::nn::Embedding tokens_{nullptr}, positions_{nullptr};
  torch::nn::ModuleList blocks_;
  nn::Norm embedding_norm_{nullptr}, norm_{nullptr};
  torch::nn::Linear head_{nullptr};
};
TORCH_MODULE(GPT);

}  // namespace demi::models
