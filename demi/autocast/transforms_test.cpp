// A region around, or inside of, what LibTorch makes of a program: traces and functorch's vmap.
#include <ATen/functorch/DynamicLayer.h>
#include <gtest/gtest.h>
#include <torch/csrc/jit/api/module.h>
#include <torch/csrc/jit/frontend/tracer.h>
#include <torch/torch.h>

#include "demi/autocast/autocast.h"
#include "demi/weights/weights.h"

// Their header does not go together with that of LibTorch's older vmap.
namespace at::functorch {
TORCH_API Tensor addBatchDim(Tensor tensor, int64_t dim, int64_t level);
TORCH_API std::tuple<Tensor, std::optional<int64_t>> unwrapTensorAtLevel(const Tensor& tensor,
                                                                         int64_t level);
}  // namespace at::functorch

namespace demi {
namespace {

using Stack = torch::jit::Stack;

TEST(Transforms, ATraceHoldsTheCastsOfWeights) {
  torch::jit::Module module("Layer");
  module.register_parameter("weight", torch::randn({8, 8}).requires_grad_(), false);
  const auto weight = module.attr("weight").toTensor();
  weights::own(weight);
  const auto x = torch::randn({2, 8});
  const auto forward = [&](const at::Tensor& input) { return torch::linear(input, weight); };
  Stack outputs;
  std::shared_ptr<torch::jit::tracer::TracingState> state;
  {
    const Autocast region(torch::kCPU, torch::kBFloat16);
    forward(x);  // keeps a copy, of which the trace must not know
    std::tie(state, outputs) = torch::jit::tracer::trace(
        {x}, [&](Stack stack) { return Stack{forward(stack.at(0).toTensor())}; },
        [](const at::Tensor&) { return ""; }, /*strict=*/true, /*force_outplace=*/false, &module);
    EXPECT_TRUE(outputs.at(0).toTensor().equal(forward(x)));
  }
  EXPECT_NE(state->graph->toString().find("aten::to("), std::string::npos)
      << state->graph->toString();
  weights::disown(weight);
}

// The product of each example, as vmap has it: the batch is no dimension that the ops see.
TEST(Transforms, VmapOverProductsIsLibTorchs) {
  namespace functorch = at::functorch;
  const auto x = torch::randn({3, 16, 64}), w = torch::randn({64, 64}).requires_grad_();
  for (const auto dtype : {torch::kHalf, torch::kBFloat16}) {
    const Autocast region(torch::kCPU, dtype);
    const std::vector<std::function<at::Tensor(const at::Tensor&)>> products{
        [&](const at::Tensor& one) { return torch::mm(one, w); },
        [&](const at::Tensor& one) { return torch::matmul(one, w); },
        [&](const at::Tensor& one) { return torch::linear(one, w); },
        [&](const at::Tensor& one) { return torch::mm(one, one.t()); }};
    for (std::size_t i = 0; i < products.size(); ++i) {
      const auto level = functorch::initAndPushDynamicLayer(
          functorch::TransformType::Vmap, c10::SymInt(3), functorch::RandomnessType::Error);
      at::Tensor result;
      try {
        const auto output = products[i](functorch::addBatchDim(x, 0, level));
        result = std::get<0>(functorch::unwrapTensorAtLevel(output, level));
      } catch (const std::exception& error) {
        ADD_FAILURE() << i << ": " << error.what();
      }
      functorch::popDynamicLayerAndDeleteMetadata();
      if (!result.defined()) continue;
      EXPECT_EQ(result.scalar_type(), dtype) << i;
      for (int64_t example = 0; example < 3; ++example)
        EXPECT_TRUE(torch::allclose(result[example].to(torch::kFloat),
                                    products[i](x[example]).to(torch::kFloat), 0.02, 0.1))
            << i;
    }
  }
}

// Several gradients through one graph, as torch.autograd.grad(is_grads_batched=True).
TEST(Transforms, VmapOverTheBackwardOfProductsIsLibTorchs) {
  namespace functorch = at::functorch;
  const auto w = torch::randn({64, 64}).requires_grad_(), picture = torch::randn({2, 16, 16, 16});
  const auto filter = torch::randn({16, 16, 3, 3}).requires_grad_();
  for (const auto dtype : {torch::kHalf, torch::kBFloat16}) {
    const Autocast region(torch::kCPU, dtype);
    const std::vector<std::pair<at::Tensor, at::Tensor>> cases{
        {torch::mm(torch::randn({16, 64}), w), w}, {torch::conv2d(picture, filter), filter}};
    for (const auto& one : cases) {
      const at::Tensor output = one.first, leaf = one.second;
      auto sizes = output.sizes().vec();
      sizes.insert(sizes.begin(), 3);
      const auto gradients = torch::randn(sizes).to(dtype);
      const auto gradient_of = [&](const at::Tensor& gradient) {
        return torch::autograd::grad({output}, {leaf}, {gradient}, /*retain_graph=*/true).at(0);
      };
      const auto level = functorch::initAndPushDynamicLayer(
          functorch::TransformType::Vmap, c10::SymInt(3), functorch::RandomnessType::Error);
      at::Tensor result;
      try {
        const auto batched = gradient_of(functorch::addBatchDim(gradients, 0, level));
        result = std::get<0>(functorch::unwrapTensorAtLevel(batched, level));
      } catch (const std::exception& error) {
        ADD_FAILURE() << error.what();
      }
      functorch::popDynamicLayerAndDeleteMetadata();
      for (int64_t i = 0; result.defined() && i < 3; ++i)
        EXPECT_TRUE(torch::allclose(result[i].to(torch::kFloat),
                                    gradient_of(gradients[i]).to(torch::kFloat), 0.05, 0.5));
    }
  }
}

TEST(Transforms, NestedTensorsAreCastAsLibTorchCastsThem) {
  const auto a = torch::randn({2, 4}), b = torch::randn({3, 4});
  const auto w = torch::randn({5, 4}).requires_grad_();
  const auto nested = at::_nested_tensor_from_tensor_list({a, b});
  // As of a frozen weight. NOLINTNEXTLINE(performance-unnecessary-copy-initialization)
  const auto second_holder = nested;
  const Autocast region(torch::kCPU, torch::kBFloat16);
  const auto parts = torch::linear(nested, w).unbind();
  EXPECT_EQ(parts.at(0).scalar_type(), torch::kBFloat16);
  EXPECT_TRUE(torch::allclose(parts.at(0), torch::linear(a, w), 0.02, 0.05));
  EXPECT_TRUE(torch::allclose(parts.at(1), torch::linear(b, w), 0.02, 0.05));
}

}  // namespace
}  // namespace demi
