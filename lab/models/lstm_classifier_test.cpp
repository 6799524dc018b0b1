#include "lab/models/lstm_classifier.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/nn/utils/rnn.h>

#include <utility>

#include "lab/models/seeded.h"

namespace demi::models {
namespace {

LSTMClassifier small(Pool pool, bool bidirectional) {
  const Seeded seeded(1);
  return LSTMClassifier(LSTMClassifierOptions{.vocabulary = 30,
                                              .embedding = 5,
                                              .hidden = 4,
                                              .outputs = 2,
                                              .pool = pool,
                                              .bidirectional = bidirectional});
}

const at::Tensor kLengths = at::tensor({6, 1, 4}, at::kLong);

at::Tensor tokens_padded_with(int64_t padding) {
  at::Tensor tokens = at::arange(18).remainder(29).view({3, 6}).clone();
  for (int64_t row = 0; row < 3; ++row)
    tokens[row].slice(0, kLengths[row].item<int64_t>()).fill_(padding);
  return tokens;
}

/// The same network by LibTorch's own packed sequences, which know of lengths.
at::Tensor reference(LSTMClassifier& model, const at::Tensor& tokens, Pool pool,
                     bool bidirectional) {
  namespace rnn = torch::nn::utils::rnn;
  torch::nn::LSTM lstm(torch::nn::LSTMOptions(5, 4).batch_first(true).bidirectional(bidirectional));
  const auto weights = model->named_parameters();
  const at::NoGradGuard no_grad;
  for (auto& own : lstm->named_parameters()) {
    std::string name = own.key();
    const bool backward = name.ends_with("_reverse");
    if (backward) name.resize(name.size() - std::string_view("_reverse").size());
    own.value().copy_(weights[(backward ? "backward_lstm." : "lstm.") + name]);
  }
  const at::Tensor embedded =
      weights["embedding.weight"].index_select(0, tokens.flatten()).view({3, 6, 5});
  const auto packed = rnn::pack_padded_sequence(embedded, kLengths, true, false);
  const auto outputs = std::get<0>(
      rnn::pad_packed_sequence(std::get<0>(lstm->forward_with_packed_input(packed)), true));
  std::vector<at::Tensor> rows;
  for (int64_t row = 0; row < 3; ++row) {
    const at::Tensor valid = outputs[row].slice(0, 0, kLengths[row].item<int64_t>());
    if (pool == Pool::mean) rows.push_back(valid.mean(0));
    if (pool == Pool::max) rows.push_back(valid.amax(0));
    if (pool == Pool::last)  // of each direction the output that has seen all tokens
      rows.push_back(at::cat({valid[-1].slice(0, 0, 4), valid[0].slice(0, 4)}));
  }
  return at::stack(rows).matmul(weights["classifier.weight"].t()) + weights["classifier.bias"];
}

TEST(LSTMClassifier, AgreesWithPackedSequences) {
  for (Pool pool : {Pool::last, Pool::mean, Pool::max})
    for (bool bidirectional : {false, true}) {
      LSTMClassifier model = small(pool, bidirectional);
      const at::Tensor tokens = tokens_padded_with(0);
      const at::Tensor expected = reference(model, tokens, pool, bidirectional);
      EXPECT_LT((model->forward(tokens, kLengths) - expected).abs().max().item<double>(), 1e-6)
          << static_cast<int>(pool) << bidirectional;
    }
}

// The precisions fp64 and bf16-true of a Trainer: the module's own dtype all through.
TEST(LSTMClassifier, WorksInOtherDtypes) {
  for (Pool pool : {Pool::last, Pool::mean, Pool::max})
    for (bool bidirectional : {false, true}) {
      LSTMClassifier model = small(pool, bidirectional);
      const at::Tensor tokens = tokens_padded_with(0);
      const at::Tensor expected = reference(model, tokens, pool, bidirectional);
      // FP32's reference is off by its own rounding; bf16 rounds weights and some ten results.
      for (const auto& [dtype, most] :
           {std::pair(at::kDouble, 1e-6), {at::kBFloat16, 10 * 0x1p-8}}) {
        model->to(dtype);
        const at::Tensor seen = model->forward(tokens, kLengths);
        EXPECT_EQ(seen.scalar_type(), dtype);
        EXPECT_LT((seen - expected).abs().max().item<double>(), most)
            << static_cast<int>(pool) << bidirectional << dtype;
      }
    }
}

// Summed up in 16 bits, 1000 equal numbers would be off by a tenth and more.
TEST(LSTMClassifier, TakesTheMeanOfSixteenBitsInFP32) {
  LSTMClassifier model = small(Pool::mean, false);
  const at::NoGradGuard no_grad;
  const at::Tensor tokens = at::full({1, 1000}, 3, at::kLong);
  const at::Tensor expected = model->forward(tokens, {});
  model->to(at::kBFloat16);
  EXPECT_LT((model->forward(tokens, {}) - expected).abs().max().item<double>(), 10 * 0x1p-8);
}

TEST(LSTMClassifier, NeverLooksAtThePadding) {
  for (Pool pool : {Pool::last, Pool::mean, Pool::max}) {
    LSTMClassifier model = small(pool, true);
    const at::Tensor result = model->forward(tokens_padded_with(0), kLengths);
    EXPECT_TRUE(at::equal(result, model->forward(tokens_padded_with(29), kLengths)));
    result.sum().backward();
    // Token 29 occurs nowhere else: with it as padding no gradient reaches its row.
    model->zero_grad();
    model->forward(tokens_padded_with(29), kLengths).sum().backward();
    EXPECT_EQ(model->named_parameters()["embedding.weight"].grad()[29].abs().sum().item<double>(),
              0);
  }
}

TEST(LSTMClassifier, TakesAllTokensWithoutLengths) {
  LSTMClassifier model = small(Pool::mean, true);
  const at::Tensor tokens = at::arange(12).view({2, 6});
  EXPECT_TRUE(
      at::equal(model->forward(tokens, {}), model->forward(tokens, at::tensor({6, 6}, at::kLong))));
}

TEST(LSTMClassifier, CountsAnEmptyTextAsOneToken) {
  LSTMClassifier model = small(Pool::mean, false);
  const at::Tensor tokens = at::zeros({1, 3}, at::kLong);
  EXPECT_TRUE(at::equal(model->forward(tokens, at::tensor({0}, at::kLong)),
                        model->forward(tokens, at::tensor({1}, at::kLong))));
}

}  // namespace
}  // namespace demi::models
