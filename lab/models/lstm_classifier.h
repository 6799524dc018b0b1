#pragma once

#include <torch/nn/module.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/rnn.h>
#include <torch/nn/pimpl.h>

#include "demi/core/export.h"

namespace demi::models {

/// What of an LSTM's outputs goes into the classifier: the one at the last valid token, or the mean
/// or maximum over valid ones.
enum class Pool { last, mean, max };

/// Sizes of an LSTMClassifier.
struct LSTMClassifierOptions {
  int64_t vocabulary = 0;      // entries of the embedding, >= 1
  int64_t embedding = 100;     // its width
  int64_t hidden = 256;        // of each direction
  int64_t outputs = 1;         // 1: one logit for two classes
  Pool pool = Pool::last;      // what of the outputs is classified
  bool bidirectional = false;  // a second LSTM reads the valid tokens from the last to the first
};

/// Embedding, one LSTM layer, pooling over the valid tokens, Linear. Tokens (N, T) int64 and
/// lengths (N) int64 (undefined: all T are valid; 0 counts as 1) to logits (N, outputs). What is in
/// the padding has no influence on any result.
class DEMI_API LSTMClassifierImpl : public torch::nn::Module {
 public:
  explicit LSTMClassifierImpl(const LSTMClassifierOptions& options);

  /// (N, T) and (N) to logits (N, outputs).
  at::Tensor forward(const at::Tensor& tokens, const at::Tensor& lengths);

 private:
  at::Tensor pooled(const at::Tensor& outputs, const at::Tensor& lengths) const;

  Pool pool_;
  torch::nn::Embedding embedding_;
  torch::nn::LSTM forward_lstm_, backward_lstm_{nullptr};
  torch::nn::Linear classifier_;
};
TORCH_MODULE(LSTMClassifier);

}  // namespace demi::models
