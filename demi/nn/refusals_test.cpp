#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cmath>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "demi/attention/attention.h"
#include "demi/autocast/apply.h"
#include "demi/autocast/autocast.h"
#include "demi/core/error.h"
#include "demi/nn/key_value_cache.h"
#include "demi/nn/linear_cross_entropy.h"
#include "demi/nn/rotary.h"
#include "demi/nn/transformer_block.h"

// Each public function of the two folders called alone, with what does not fit: no result, no error
// of LibTorch's, but a UsageError in the function's name.
namespace demi::nn {
namespace {

using testing::HasSubstr;

struct Refusal {
  std::string message;  // a part of it
  std::function<void()> call;
};

void expect_refusals(const std::string& where, const std::vector<Refusal>& all) {
  for (const auto& [message, call] : all) {
    SCOPED_TRACE(where + ": " + message);
    try {
      call();
      ADD_FAILURE() << "nothing thrown";
    } catch (const UsageError& error) {
      EXPECT_THAT(error.what(), HasSubstr("[" + where + "] "));
      EXPECT_THAT(error.what(), HasSubstr(message));
    } catch (const std::exception& error) {
      ADD_FAILURE() << error.what();
    }
  }
}

at::Tensor of(at::IntArrayRef sizes, at::ScalarType dtype = torch::kFloat) {
  return torch::ones(sizes, dtype);
}

TEST(Refusals, OfNorm) {
  Norm norm(NormOptions{.width = 3});
  expect_refusals("nn.Norm", {{"width", [] { Norm(NormOptions{.width = 0}); }},
                              {"eps", [] { Norm(NormOptions{.width = 1, .eps = NAN}); }},
                              {"no tensor", [&] { norm->forward({}); }},
                              {"Long", [&] { norm->forward(of({3}, torch::kLong)); }},
                              {"(*, 3)",
                               [&] {
                                 norm->forward(of({3, 4}));
                               }},
                              {"(*, 3)", [&] { norm->forward(of({})); }}});
}

TEST(Refusals, OfFeedForward) {
  FeedForward layer(FeedForwardOptions{.width = 3});
  expect_refusals("nn.FeedForward",
                  {{"width", [] { hidden_width({.width = -3}); }},
                   {"hidden", [] { hidden_width({.width = 3, .hidden = -1}); }},
                   {"width", [] { FeedForward(FeedForwardOptions{.width = 0}); }},
                   {"hidden", [] { FeedForward(FeedForwardOptions{.width = 1, .hidden = -4}); }},
                   {"dropout", [] { FeedForward(FeedForwardOptions{.width = 1, .dropout = 1.5}); }},
                   {"no tensor", [&] { layer->forward({}); }},
                   {"Int",
                    [&] {
                      layer->forward(of({2, 3}, torch::kInt));
                    }},
                   {"(*, 3)", [&] {
                      layer->forward(of({2, 4}));
                    }}});
}

TEST(Refusals, OfSelfAttention) {
  SelfAttention layer(SelfAttentionOptions{.width = 4, .heads = 2});
  KeyValueCache cache(8);
  expect_refusals("nn.SelfAttention",
                  {{"heads", [] { SelfAttention(SelfAttentionOptions{.width = 4, .heads = 3}); }},
                   {"no tensor", [&] { layer->forward({}); }},
                   {"Long",
                    [&] {
                      layer->forward(of({1, 2, 4}, torch::kLong));
                    }},
                   {"(N, T, 4)",
                    [&] {
                      layer->forward(of({2, 4}));
                    }},
                   {"(N, T, 4)",
                    [&] {
                      layer->forward(of({1, 2, 5}));
                    }},
                   {"cache", [&] {
                      layer->forward(of({1, 2, 4}), {.cu_seqlens = torch::tensor({0, 2})}, &cache);
                    }}});
  // What it hands to its parts.
  expect_refusals("nn.rotate", {{"angles", [&] {
                                   const auto rotary = rotary_angles(torch::arange(3), 2);
                                   layer->forward(of({1, 2, 4}), {.rotary = rotary});
                                 }}});
  expect_refusals("attention.attention", {{"mask", [&] {
                                             layer->forward(of({1, 2, 4}), {.mask = of({3, 3})});
                                           }}});
  EXPECT_EQ(cache.tokens(), 0);
}

TEST(Refusals, OfRotaryAngles) {
  const auto positions = torch::arange(3);
  expect_refusals("nn.rotary_angles",
                  {{"even", [&] { rotary_angles(positions, 7); }},
                   {"even", [&] { rotary_angles(positions, 0); }},
                   {"(T) or (N, T)", [] { rotary_angles({}, 4); }},
                   {"(T) or (N, T)", [] { rotary_angles(torch::zeros({}, torch::kLong), 4); }},
                   {"(T) or (N, T)",
                    [&] {
                      rotary_angles(positions.view({1, 1, 3}), 4);
                    }},
                   {"int64", [&] { rotary_angles(positions.to(torch::kInt), 4); }},
                   {"theta", [&] { rotary_angles(positions, 4, 0); }},
                   {"theta", [&] { rotary_angles(positions, 4, -10000); }},
                   {"theta", [&] { rotary_angles(positions, 4, NAN); }},
                   {"theta", [&] { rotary_angles(positions, 4, INFINITY); }}});
}

TEST(Refusals, OfRotate) {
  const auto angles = rotary_angles(torch::arange(3), 4);
  const auto of_rows = [](std::int64_t rows) {
    return rotary_angles(torch::arange(3).expand({rows, 3}), 4);
  };
  expect_refusals(
      "nn.rotate",
      {{"no tensor", [&] { rotate({}, angles); }},
       {"Long",
        [&] {
          rotate(of({1, 1, 3, 4}, torch::kLong), angles);
        }},
       {"even size",
        [&] {
          rotate(of({1, 1, 3, 5}), angles);
        }},
       {"even size", [&] { rotate(of({4}), angles); }},
       {"angles do not fit",
        [] {
          rotate(of({1, 1, 3, 4}), {});
        }},
       {"angles do not fit",
        [&] {
          rotate(of({1, 1, 3, 6}), angles);
        }},
       {"angles do not fit",
        [&] {
          rotate(of({1, 1, 2, 4}), angles);
        }},
       {"angles do not fit",
        [&] {
          rotate(of({1, 1, 3, 4}), of_rows(3));
        }},
       {"angles do not fit",
        [&] {
          rotate(of({2, 1, 3, 4}), of_rows(3));
        }},
       {"angles do not fit",
        [&] {
          rotate(of({3, 3, 4}), of_rows(3));
        }},
       {"angles do not fit",
        [&] {
          rotate(of({1, 1, 3, 4}), {.cos = angles.cos});
        }},
       {"angles do not fit",
        [&] {
          rotate(of({1, 1, 3, 4}), {.cos = angles.cos, .sin = angles.sin.narrow(0, 0, 1)});
        }},
       {"angles do not fit", [&] {
          rotate(of({1, 1, 3, 4}), {.cos = angles.cos.to(torch::kLong), .sin = angles.sin});
        }}});
  for (const std::int64_t rows : {1, 2})
    EXPECT_EQ(rotate(of({2, 5, 3, 4}), of_rows(rows)).sizes(), at::IntArrayRef({2, 5, 3, 4}));
}

TEST(Refusals, OfDocumentPositions) {
  const auto with = [](const at::Tensor& starts) {
    return [starts] { document_positions(starts, 2, 4); };
  };
  expect_refusals("nn.document_positions",
                  {{"no tensor", with({})},
                   {"one dimension of integers", with(torch::tensor({0., 8.}))},
                   {"one dimension of integers", with(torch::tensor({{0, 8}}))},
                   {"0 to 8", with(torch::zeros({0}, torch::kLong))},
                   {"0 to 8", with(torch::tensor({0, 7}))},
                   {"0 to 8", with(torch::tensor({1, 8}))},
                   {"must not fall", with(torch::tensor({0, 4, 3, 8}))},
                   {"crosses rows", with(torch::tensor({0, 5, 8}))},
                   {"must not fall",
                    [] {
                      document_positions(torch::tensor({0, 5, 0}), 2, 0);
                    }},
                   {"rows is negative",
                    [] {
                      document_positions(torch::tensor({0, 8}), -2, -4);
                    }},
                   {"tokens is negative", [] {
                      document_positions(torch::tensor({0, 8}), 2, -4);
                    }}});
}

TEST(Refusals, OfKeyValueCache) {
  const torch::NoGradGuard no_grad;
  KeyValueCache cache(4);
  const auto keys = of({2, 1, 2, 8});
  const auto append = [&](const at::Tensor& k, const at::Tensor& v) {
    return [&cache, k, v] { cache.append(k, v); };
  };
  const auto expect_none_is_taken = [&] {
    expect_refusals("nn.KeyValueCache",
                    {{"room", [] { KeyValueCache(0); }},
                     {"keys is no floating point", append({}, keys)},
                     {"values is no floating point", append(keys, {})},
                     {"values is no floating point", append(keys, keys.to(torch::kInt))},
                     {"(N, G, T, E)", append(of({1, 2, 8}), of({1, 2, 8}))},
                     {"values do not fit", append(keys, of({2, 1, 5, 8}))},
                     {"values do not fit", append(of({2, 1, 5, 8}), keys)},
                     {"values do not fit", append(keys, of({1, 1, 2, 8}))},
                     {"values do not fit", append(keys, of({2, 3, 2, 8}))},
                     {"values do not fit", append(keys, keys.to(torch::kDouble))},
                     {"values do not fit", append(keys, keys.to(torch::kMeta))},
                     {"at most 4", append(of({2, 1, 5, 8}), of({2, 1, 5, 8}))}});
  };
  expect_none_is_taken();
  EXPECT_EQ(cache.tokens(), 0);
  cache.append(keys, keys);
  expect_none_is_taken();
  EXPECT_EQ(cache.tokens(), 2);
  const auto [all, values] = cache.append(2 * keys, of({2, 1, 2, 8}));
  EXPECT_TRUE(torch::equal(all, torch::cat({keys, 2 * keys}, 2)));
}

// Sizes and options: demi/attention/attention_test.cpp.
TEST(Refusals, OfAttention) {
  const auto q = of({1, 2, 3, 4});
  expect_refusals("attention.attention",
                  {{"no tensor", [&] { attention({}, q, q); }},
                   {"no tensor", [&] { attention(q, q, {}); }},
                   {"Long", [&] { attention(q, q.to(torch::kLong), q); }},
                   {"heads and tokens",
                    [&] {
                      attention(q, q, of({1, 2, 5, 4}));
                    }},
                   {"dtypes", [&] { attention(q, q.to(torch::kDouble), q); }},
                   {"devices", [&] { attention(q, q.to(torch::kMeta), q); }}});
  const std::int64_t most = std::numeric_limits<std::int64_t>::max();
  EXPECT_TRUE(torch::equal(attention(q, q, q, {.causal = true, .past = most}), attention(q, q, q)));
}

// Sizes and options: linear_cross_entropy_test.cpp.
TEST(Refusals, OfLinearCrossEntropy) {
  const auto x = of({2, 4}), head = of({3, 4}), targets = torch::zeros({2}, torch::kLong);
  expect_refusals(
      "nn.linear_cross_entropy",
      {{"no tensor", [&] { linear_cross_entropy({}, head, targets); }},
       {"no tensor", [&] { linear_cross_entropy(x, {}, targets); }},
       {"no tensor", [&] { linear_cross_entropy(x, head, {}); }},
       {"Long", [&] { linear_cross_entropy(x.to(torch::kLong), head, targets); }},
       {"(classes, width)", [&] { linear_cross_entropy(x, head[0], targets); }},
       {"devices", [&] { linear_cross_entropy_and_right(x, head.to(torch::kMeta), targets); }}});
}

TEST(Refusals, OfAHeadWithARecipe) {
  torch::nn::Linear head(torch::nn::LinearOptions(32, 8).bias(false));
  demi::apply(OpPolicy().set_part("*", "mxfp8"), *head);
  const Autocast region(torch::kCPU);
  expect_refusals("nn.linear_cross_entropy", {{"mxfp8", [&] {
                                                 linear_cross_entropy(
                                                     torch::zeros({2, 32}), head->weight,
                                                     torch::zeros({2}, torch::kLong));
                                               }}});
}

}  // namespace
}  // namespace demi::nn
