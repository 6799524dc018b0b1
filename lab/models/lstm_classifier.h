#pragma once

#include <torch/nn/modules/common.h>
#include <torch/nn/modules/container/any_value.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/rnn.h>
#include <torch/nn/pimpl.h>

#include "demi/core/export.h"
#include "demi/nn/cloneable.h"

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
class DEMI_API LSTMClassifierImpl : public nn::Cloneable<LSTMClassifierImpl> {
 public:
  explicit LSTMClassifierImpl(const LSTMClassifierOptions& options);

  /// Registers new layers, as the constructor does.
  void reset() override;

  /// (N, T) and (N) to logits (N, outputs).
  at::Tensor forward(const at::Tensor& tokens, const at::Tensor& lengths = {});

 protected:
  FORWARD_HAS_DEFAULT_ARGS({1, torch::nn::AnyValue(at::Tensor())})

 private:
  at::Tensor pooled(const at::Tensor& outputs, const at::Tensor& lengths) const;

  LSTMClassifierOptions options_;
  torch::nn::Embedding embedding_{nullptr};
  torch::nn::LSTM forward_lstm_{nullptr}, backward_lstm_{nullptr};
  torch::nn::Linear classifier_{nullptr};
};
TORCH_MODULE(LSTMClassifier);

}  // namespace demi::models
