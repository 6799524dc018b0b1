// Products of a region on a processor with and without instructions for them.
#include <gtest/gtest.h>
#include <torch/csrc/autograd/functions/accumulate_grad.h>
#include <torch/torch.h>

#include <functional>
#include <set>

#include "demi/autocast/autocast.h"
#include "demi/products/through_fp32.h"

namespace demi {
namespace {

using ProductCall = std::function<at::Tensor()>;

bool is_ours(const torch::autograd::Node* node, std::set<const torch::autograd::Node*>& seen) {
  if (!node || !seen.insert(node).second) return false;
  if (node->name().find("demi::products") != std::string::npos) return true;
  for (const auto& edge : node->next_edges())
    if (is_ours(edge.function.get(), seen)) return true;
  return false;
}

/// Whether a product of demi's is in the graph.
bool ran_through_fp32(const at::Tensor& result) {
  std::set<const torch::autograd::Node*> seen;
  return is_ours(result.grad_fn().get(), seen);
}

/// The leaves under a result, in the order of a walk through its graph.
void collect_leaves(torch::autograd::Node* node, std::set<const torch::autograd::Node*>& seen,
                    std::vector<at::Tensor>& leaves) {
  if (!node || !seen.insert(node).second) return;
  if (const auto* leaf = dynamic_cast<torch::autograd::AccumulateGrad*>(node))
    leaves.push_back(leaf->variable);
  for (const auto& edge : node->next_edges()) collect_leaves(edge.function.get(), seen, leaves);
}

std::vector<at::Tensor> gradients_of(const at::Tensor& loss) {
  std::set<const torch::autograd::Node*> seen;
  std::vector<at::Tensor> leaves;
  collect_leaves(loss.grad_fn().get(), seen, leaves);
  return torch::autograd::grad({loss}, leaves);
}

at::Tensor in_region(const ProductCall& forward, c10::ScalarType dtype) {
  const Autocast region(torch::kCPU, dtype);
  return forward();
}

struct Named {
  const char* name;
  ProductCall forward;
};

std::vector<Named> networks() {
  namespace nn = torch::nn;
  torch::manual_seed(11);
  const auto weight = [](at::IntArrayRef sizes) { return torch::randn(sizes).requires_grad_(); };
  const auto a = weight({32, 40}), b = weight({40, 48}), c = weight({32, 48}), row = weight({48});
  const auto batch_a = weight({3, 32, 40}), batch_b = weight({3, 40, 48}),
             batch_c = weight({3, 32, 48});
  const auto x1 = weight({4, 16, 100}), k1 = weight({16, 16, 15}), x2 = weight({4, 16, 20, 20}),
             k2 = weight({16, 16, 3, 3}), x3 = weight({2, 8, 10, 10, 10}),
             k3 = weight({8, 8, 3, 3, 3});
  const auto sequence = torch::randn({5, 8, 32});
  nn::GRU gru(nn::GRUOptions(32, 32));
  nn::MultiheadAttention attention(nn::MultiheadAttentionOptions(32, 4));
  nn::Conv2d same(nn::Conv2dOptions(16, 16, 3).padding(torch::kSame));
  return {
      {"linear", [=] { return at::linear(a, b.t(), row); }},
      {"mm", [=] { return at::mm(a, b); }},
      {"addmm", [=] { return at::addmm(c, a, b); }},
      {"bmm", [=] { return at::bmm(batch_a, batch_b); }},
      {"baddbmm", [=] { return at::baddbmm(batch_c, batch_a, batch_b); }},
      {"matmul", [=] { return at::matmul(batch_a, b); }},
      {"einsum",
       [=] {
         return at::einsum("bij,bjk->bik", {batch_a, batch_b});
       }},
      {"conv1d", [=] { return at::conv1d(x1, k1); }},
      {"conv2d", [=] { return at::conv2d(x2, k2); }},
      {"conv3d", [=] { return at::conv3d(x3, k3); }},
      {"conv1d same", [=] { return at::conv1d(x1, k1, {}, 1, "same"); }},
      {"conv3d same", [=] { return at::conv3d(x3, k3, {}, 1, "same"); }},
      {"conv_transpose1d", [=] { return at::conv_transpose1d(x1, k1); }},
      {"conv_transpose2d", [=] { return at::conv_transpose2d(x2, k2); }},
      {"conv_transpose3d", [=] { return at::conv_transpose3d(x3, k3); }},
      {"nn::Conv2d, padding same", [=]() mutable { return same(x2); }},
      {"nn::GRU", [=]() mutable { return std::get<0>(gru(sequence)); }},
      {"nn::MultiheadAttention",
       [=]() mutable { return std::get<0>(attention(sequence, sequence, sequence)); }},
  };
}

TEST(ProductsInARegion, RunThroughFp32WhereTheProcessorHasNoInstructions) {
  for (const auto dtype : {torch::kBFloat16, torch::kHalf}) {
    for (const auto& [name, forward] : networks()) {
      EXPECT_EQ(ran_through_fp32(in_region(forward, dtype)), products::slow_in(dtype))
          << name << " " << dtype;
      EXPECT_FALSE(ran_through_fp32(forward())) << name << " outside of a region";
      setenv("DEMI_KERNELS", "aten", 1);
      EXPECT_FALSE(ran_through_fp32(in_region(forward, dtype)))
          << name << " with LibTorch's kernels";
      unsetenv("DEMI_KERNELS");
    }
  }
}

TEST(ProductsInARegion, AreAsNearToFp32AsLibTorchs) {
  const auto distance = [](const at::Tensor& seen, const at::Tensor& exact) {
    return ((seen.detach().to(torch::kDouble) - exact.detach().to(torch::kDouble)).norm() /
            exact.detach().to(torch::kDouble).norm())
        .item<double>();
  };
  for (const auto& [name, forward] : networks()) {
    const at::Tensor exact = forward(), ours = in_region(forward, torch::kBFloat16);
    setenv("DEMI_KERNELS", "aten", 1);
    const at::Tensor theirs = in_region(forward, torch::kBFloat16);
    unsetenv("DEMI_KERNELS");
    EXPECT_EQ(ours.scalar_type(), theirs.scalar_type()) << name;
    EXPECT_LT(distance(ours, exact), 1.05 * distance(theirs, exact)) << name;
  }
}

// Under a policy that would run the sum of a bias's gradient in FP32, too.
TEST(ProductsInARegion, BackwardInsideGivesTheBitsOfOneOutside) {
  if (!products::slow_in(torch::kBFloat16)) GTEST_SKIP() << "products are LibTorch's here";
  const OpPolicy policy = OpPolicy::named("fp32_reductions");
  for (const auto& network : networks()) {
    const auto& [name, forward_of] = network;
    const auto& forward = forward_of;  // Clang before 16 captures no structured binding
    if (std::string(name) == "nn::MultiheadAttention")
      continue;  // sums a bias of its own, by the policy
    const auto of_loss = [&](bool inside) {
      at::Tensor loss;
      std::vector<at::Tensor> gradients;
      {
        const Autocast region(torch::kCPU,
                              AutocastOptions{.dtype = torch::kBFloat16, .policy = policy});
        loss = forward().to(torch::kFloat).square().sum();
        if (inside) gradients = gradients_of(loss);
      }
      return inside ? gradients : gradients_of(loss);
    };
    const auto inside = of_loss(true), outside = of_loss(false);
    ASSERT_EQ(inside.size(), outside.size()) << name;
    ASSERT_FALSE(inside.empty()) << name;
    for (std::size_t i = 0; i < inside.size(); ++i)
      EXPECT_TRUE(inside[i].equal(outside[i])) << name << " " << i;
  }
}

TEST(ProductsInARegion, WrongShapesGetLibTorchsMessage) {
  const auto message = [](const ProductCall& forward) {
    try {
      forward();
    } catch (const c10::Error& error) {
      return std::string(error.what_without_backtrace());
    }
    return std::string();
  };
  const auto a = torch::randn({32, 40}), b = torch::randn({41, 48}),
             x1 = torch::randn({8, 16, 640}), k1 = torch::randn({16, 16, 5}),
             x2 = torch::randn({8, 16, 20, 20}), k2 = torch::randn({16, 16, 3, 3}),
             last = torch::randn({4, 32, 16, 16}).contiguous(at::MemoryFormat::ChannelsLast),
             pointwise = torch::randn({64, 32, 1, 1});
  const std::vector<std::int64_t> one{1, 1}, none{0, 0};
  for (const ProductCall& wrong :
       {ProductCall([&] { return at::mm(a, b); }), ProductCall([&] { return at::linear(a, b); }),
        ProductCall([&] { return at::matmul(a, b); }),
        ProductCall([&] { return at::conv2d(x1, k1); }),
        ProductCall([&] { return at::conv1d(x2, k2); }),
        ProductCall([&] { return at::conv_transpose2d(x1, k1); }),
        ProductCall([&] { return at::conv2d(x1, k1, {}, 1, "same"); }), ProductCall([&] {
          return at::conv2d(last, pointwise, {}, one, none, one, /*groups=*/2);
        })}) {
    const std::string inside = message([&] { return in_region(wrong, torch::kBFloat16); });
    EXPECT_NE(inside, "");
    EXPECT_EQ(inside, message(wrong));
  }
}

}  // namespace
}  // namespace demi
