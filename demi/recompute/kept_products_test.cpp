#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/library.h>
#include <torch/torch.h>

#include <array>
#include <cstring>
#include <functional>
#include <optional>
#include <tuple>
#include <vector>

#include "demi/attention/attention.h"
#include "demi/autocast/autocast.h"
#include "demi/core/error.h"
#include "demi/nn/transformer_block.h"
#include "demi/profile/memory.h"
#include "demi/recompute/recompute.h"

namespace demi {
namespace {

using testing::HasSubstr;
using Op = std::function<at::Tensor(const at::Tensor&)>;

constexpr RecomputeOptions kProducts{.keep = Keep::products};

// Whether the second run gets the result of the first one's op: it is written to where no version
// shows it.
bool is_found(const Op& op, at::Tensor x, bool in_region = false) {
  bool found = false;
  const auto function = [&](const at::Tensor& t) {
    auto y = op(t);
    if (is_recomputing())
      found = torch::isnan(y.flatten()[0]).item<bool>();
    else
      std::memset(y.data_ptr(), 0xff, y.element_size());  // NaN in every format
    return (y.exp() * y).sin();
  };
  std::optional<Autocast> region;
  if (in_region) region.emplace(torch::kCPU, torch::kBFloat16);
  const auto loss = recompute(function, x.detach().requires_grad_(), kProducts).sum();
  region.reset();
  loss.backward();
  return found;
}

TEST(KeptProducts, AreFoundInTheSecondRun) {
  torch::manual_seed(1);
  const auto x = torch::randn({4, 8}), w = torch::randn({8, 8}).requires_grad_(),
             b = torch::randn({8}), pictures = torch::randn({2, 3, 5, 5}),
             kernel = torch::randn({4, 3, 3, 3}).requires_grad_(),
             heads = torch::randn({1, 2, 16, 8});
  for (const bool in_region : {false, true}) {
    SCOPED_TRACE(in_region);
    EXPECT_TRUE(is_found([&](const auto& t) { return at::mm(t, w); }, x, in_region));
    EXPECT_TRUE(is_found([&](const auto& t) { return at::addmm(b, t, w); }, x, in_region));
    EXPECT_TRUE(is_found([&](const auto& t) { return at::linear(t, w, b); }, x, in_region));
    EXPECT_TRUE(is_found([&](const auto& t) { return at::linear(t, w, b); },
                         torch::randn({3, 4, 8}), in_region));
    EXPECT_TRUE(
        is_found([&](const auto& t) { return at::conv2d(t, kernel); }, pictures, in_region));
    EXPECT_TRUE(is_found([](const auto& t) { return attention(t, t, t, {.causal = true}); }, heads,
                         in_region));
    EXPECT_TRUE(
        is_found([](const auto& t) { return attention(t, t, t, {.causal = true, .dropout = 0.1}); },
                 heads, in_region));
    EXPECT_TRUE(is_found([](const auto& t) { return at::scaled_dot_product_attention(t, t, t); },
                         heads, in_region));
    EXPECT_FALSE(is_found([](const auto& t) { return at::bmm(t[0], t[0].transpose(1, 2)); }, heads,
                          in_region));
    EXPECT_FALSE(is_found([](const auto& t) { return t * 2; }, x, in_region));
  }
}

TEST(KeptProducts, AreComputedAnewIfTheyWereWrittenTo) {
  const auto w = torch::randn({8, 8}).requires_grad_(), x = torch::randn({4, 8});
  const torch::nn::Linear linear(8, 8);  // adds its bias in place to a product of three dimensions
  for (const bool in_region : {false, true}) {
    SCOPED_TRACE(in_region);
    const auto found = [&](const Op& op) { return is_found(op, x, in_region); };
    EXPECT_FALSE(found([&](const auto& t) { return at::mm(t, w).mul_(2); }));
    EXPECT_FALSE(found([&](const auto& t) { return at::mm(t, w).view({-1}).mul_(2); }));
    EXPECT_FALSE(
        found([&](const auto& t) { return at::unsafe_chunk(at::mm(t, w), 2)[0].mul_(2); }));
    EXPECT_FALSE(found([&](const auto& t) { return at::matmul(t.unsqueeze(0), w).mul_(2); }));
    EXPECT_TRUE(found([&](const auto& t) { return at::matmul(t.unsqueeze(0), w); }));
    EXPECT_FALSE(
        found([&](at::Tensor t) { return torch::nn::Linear(linear)->forward(t.unsqueeze(0)); }));
  }
}

TEST(KeptProducts, AreNotFoundWhereNothingIsKept) {
  const auto w = torch::randn({8, 8}).requires_grad_();
  const auto x = torch::randn({4, 8}).requires_grad_();
  bool found = true;
  const auto y = recompute(
      [&](const at::Tensor& t) {
        auto product = at::mm(t, w);
        found = torch::isnan(product.flatten()[0]).item<bool>();
        if (!is_recomputing()) std::memset(product.data_ptr(), 0xff, product.element_size());
        return product.exp().sin();
      },
      x);
  y.sum().backward();
  EXPECT_FALSE(found);
}

at::Tensor training_loss(const std::function<at::Tensor(const at::Tensor&)>& once,
                         const at::Tensor& x, Keep keep, bool recomputed) {
  const auto apply = [&](const at::Tensor& t) {
    return recomputed ? recompute(once, t, {.keep = keep}) : once(t);
  };
  return apply(apply(x)).to(torch::kFloat).square().mean();
}

TEST(KeptProducts, LeaveTheBitsOfGradients) {
  torch::manual_seed(2);
  nn::TransformerBlock block(nn::TransformerBlockOptions{
      .width = 16, .heads = 2, .attention_dropout = 0.2, .residual_dropout = 0.2});
  torch::nn::Sequential layers(torch::nn::Conv2d(torch::nn::Conv2dOptions(3, 3, 3).padding(1)),
                               torch::nn::BatchNorm2d(3),
                               torch::nn::ReLU(torch::nn::ReLUOptions().inplace(true)),
                               torch::nn::Conv2d(torch::nn::Conv2dOptions(3, 3, 3).padding(1)),
                               torch::nn::ReLU(torch::nn::ReLUOptions().inplace(true)));
  const Op of_block = [&](const at::Tensor& t) { return block->forward(t); };
  const Op of_layers = [&](const at::Tensor& t) { return layers->forward(t.to(torch::kFloat)); };
  for (const bool is_block : {true, false})
    for (const auto dtype : {torch::kFloat, torch::kBFloat16, torch::kHalf}) {
      SCOPED_TRACE(testing::Message() << is_block << dtype);
      torch::manual_seed(4);
      const auto x = is_block ? torch::randn({2, 12, 16}) : torch::randn({2, 3, 6, 6});
      auto leaves = is_block ? block->parameters() : layers->parameters();
      leaves.push_back(x.requires_grad_());
      const auto gradients = [&](bool recomputed) {
        torch::manual_seed(3);
        std::optional<Autocast> region;
        if (dtype != torch::kFloat) region.emplace(torch::kCPU, dtype);
        const auto loss =
            training_loss(is_block ? of_block : of_layers, x, Keep::products, recomputed);
        region.reset();
        auto first = torch::autograd::grad({loss * 1024}, leaves, {}, /*retain_graph=*/true);
        const auto second = torch::autograd::grad({loss * 1024}, leaves);
        first.insert(first.end(), second.begin(), second.end());
        return first;
      };
      const auto want = gradients(false), got = gradients(true);
      for (std::size_t i = 0; i < want.size(); ++i) EXPECT_TRUE(torch::equal(got[i], want[i])) << i;
    }
}

TEST(KeptProducts, BelongToTheirOwnCallAlone) {
  const auto w = torch::randn({8, 8}).requires_grad_();
  const auto x = torch::randn({4, 8}).requires_grad_();
  for (const auto inner_keeps : {Keep::nothing, Keep::products})
    for (const auto outer_keeps : {Keep::nothing, Keep::products}) {
      const auto inner = [&](const at::Tensor& t) { return at::mm(t.sin(), w).exp(); };
      const auto outer = [&](const at::Tensor& t) {
        return at::mm(recompute(inner, at::mm(t, w).sigmoid(), {.keep = inner_keeps}), w).tanh();
      };
      const auto got =
          torch::autograd::grad({recompute(outer, x, {.keep = outer_keeps}).sum()}, {x, w});
      const auto plain = at::mm(inner(at::mm(x, w).sigmoid()), w).tanh().sum();
      const auto want = torch::autograd::grad({plain}, {x, w});
      EXPECT_TRUE(torch::equal(got[0], want[0]));
      EXPECT_TRUE(torch::equal(got[1], want[1]));
    }
}

TEST(KeptProducts, RefuseAFunctionThatMultipliesOtherwise) {
  const auto w = torch::randn({8, 8}), b = torch::randn({8});
  const auto x = torch::randn({4, 8}).requires_grad_();
  for (const bool twice : {false, true}) {
    const auto y = recompute(
        [&, twice](const at::Tensor& t) {
          if (!is_recomputing()) return at::mm(t, w).sigmoid().exp();
          if (twice) at::mm(t.detach(), w);
          return (twice ? at::mm(t, w) : at::addmm(b, t, w)).sigmoid().exp();
        },
        x, kProducts);
    EXPECT_THAT(
        [&] { y.sum().backward(); },
        testing::ThrowsMessage<UsageError>(HasSubstr(
            twice ? "ran another product when it was run again; seen: aten::mm; accepted: none"
                  : "again; seen: aten::addmm; accepted: aten::mm;")));
  }
}

// In place of the kernel for CUDA: attention that draws from the generator, and some gradients.
using Four = std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor>;
Four drawing_attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                       const std::optional<at::Tensor>&, bool, double dropout, bool,
                       std::optional<double>) {
  const auto weights = at::matmul(q, k.transpose(2, 3)).softmax(-1);
  const auto keep = dropout > 0 ? at::rand(weights.sizes()).gt(dropout) : weights.ge(0);
  return {at::matmul(weights * keep, v), keep.to(torch::kFloat), at::zeros({}, torch::kLong),
          at::zeros({}, torch::kLong)};
}
Four its_gradients(const at::Tensor& g, const at::Tensor&, const at::Tensor&, const at::Tensor&,
                   const at::Tensor&, const at::Tensor& out, const at::Tensor& keep,
                   const at::Tensor&, const at::Tensor&, double, std::array<bool, 4>, bool,
                   std::optional<double>) {
  return {g * out, g * keep.sum(-1, true), g * 3, at::Tensor()};
}

TEST(KeptProducts, LeaveTheNumbersThatAttentionAndWhatFollowsItDraw) {
  torch::Library library(torch::Library::IMPL, "aten", c10::DispatchKey::CPU, __FILE__, __LINE__);
  library.impl("_scaled_dot_product_efficient_attention", TORCH_FN(drawing_attention));
  library.impl("_scaled_dot_product_efficient_attention_backward", TORCH_FN(its_gradients));
  const auto attend = [](const at::Tensor& t, double dropout) {
    return std::get<0>(at::_scaled_dot_product_efficient_attention(
        t, t, t, {}, /*compute_log_sumexp=*/true, dropout));
  };
  const auto heads = torch::randn({1, 2, 16, 8}).requires_grad_();
  EXPECT_TRUE(is_found([&](const auto& t) { return attend(t, 0); }, heads));
  for (const double dropout : {0.0, 0.3}) {
    const auto layer = [&](const at::Tensor& t) {
      return at::dropout(attend(t.sin(), dropout), 0.5, true).exp();
    };
    const auto gradient = [&](bool recomputed) {
      torch::manual_seed(7);
      const auto y = recomputed ? recompute(layer, heads, kProducts) : layer(heads);
      return torch::autograd::grad({y.square().sum()}, {heads})[0];
    };
    EXPECT_TRUE(torch::equal(gradient(true), gradient(false))) << dropout;
  }
}

// Three products of 1 MiB, the last of which nothing of the second run follows.
TEST(KeptProducts, CostTheirResultsAlone) {
  profile::count_cpu_memory();
  constexpr int64_t kTensor = 1 << 20;
  const auto w = torch::randn({16, 16}).requires_grad_();
  const auto x = torch::randn({kTensor / 64, 16}).requires_grad_();
  const auto held = [&](Keep keep) {
    const auto now = [] { return profile::memory_use(torch::kCPU).current_bytes; };
    const auto before = now();
    const auto loss = recompute(
                          [&](const at::Tensor& t) {
                            return at::mm(at::mm(at::mm(t, w).tanh().exp(), w).tanh().exp(), w);
                          },
                          x, {.keep = keep})
                          .sum();
    const auto bytes = now() - before;
    loss.backward();
    EXPECT_LE(now() - before, 1.2 * kTensor) << "the gradients";
    return bytes;
  };
  held(Keep::nothing);
  EXPECT_LT(held(Keep::nothing), kTensor / 10);
  const auto bytes = held(Keep::products);
  EXPECT_GE(bytes, 2 * kTensor);
  EXPECT_LE(bytes, 2.1 * kTensor);
}

}  // namespace
}  // namespace demi
