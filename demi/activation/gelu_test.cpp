#include "demi/activation/gelu.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <functional>

#include "demi/autocast/autocast.h"
#include "demi/autocast/policy.h"

namespace demi {
namespace {

using Function = std::function<at::Tensor(const at::Tensor&)>;

at::Tensor ours(const at::Tensor& x) { return demi::gelu(x, "tanh"); }
at::Tensor libtorchs(const at::Tensor& x) { return at::gelu(x, "tanh"); }

struct Result {
  at::Tensor y, gradient;
};

Result run(const Function& f, const at::Tensor& x) {
  const at::Tensor leaf = x.detach().clone(at::MemoryFormat::Preserve).requires_grad_();
  const at::Tensor y = f(leaf);
  y.backward(at::linspace(-1, 1, x.numel(), at::kDouble).to(x.scalar_type()).view(x.sizes()));
  return {y.detach(), leaf.grad()};
}

void expect_near(const at::Tensor& seen, const at::Tensor& expected, double tolerance) {
  EXPECT_LE((seen.to(at::kDouble) - expected).abs().max().item<double>(), tolerance);
}

// The truth is LibTorch's op in FP64. A result of 16 bits is rounded once: half a unit in the last
// place of numbers up to 8.
TEST(GeluOp, IsThatOfFp64) {
  torch::manual_seed(0);
  for (const auto& [dtype, tolerance] :
       {std::pair{at::kFloat, 4e-6}, {at::kHalf, 2.1e-3}, {at::kBFloat16, 1.7e-2}}) {
    SCOPED_TRACE(c10::toString(dtype));
    for (const at::Tensor& x : {at::randn({70, 1031}), at::randn({33, 40}).t(), at::randn({}),
                                at::randn({4, 6, 5, 7}).permute({0, 3, 1, 2})}) {
      const at::Tensor given = (2 * x).clamp(-7.9, 7.9).to(dtype);
      const Result seen = run(ours, given), exact = run(libtorchs, given.to(at::kDouble));
      expect_near(seen.y, exact.y, tolerance);
      expect_near(seen.gradient, exact.gradient, tolerance);
      EXPECT_EQ(seen.y.scalar_type(), dtype);
      EXPECT_EQ(seen.y.strides(), given.strides());
    }
  }
}

// Parts of a tensor, whose memory has gaps, and a gradient in another order of memory.
TEST(GeluOp, TakesAnyStrides) {
  torch::manual_seed(1);
  const at::Tensor whole = at::randn({60, 50}), part = whole.slice(1, 3, 41);
  EXPECT_TRUE(ours(part).equal(ours(part.contiguous())));
  const at::Tensor leaf = part.clone().requires_grad_(), other = part.clone().requires_grad_();
  const at::Tensor gradient = at::randn({38, 60}).t();
  ours(leaf).backward(gradient);
  ours(other).backward(gradient.contiguous());
  EXPECT_TRUE(leaf.grad().equal(other.grad()));
}

TEST(GeluOp, LeavesTheRestToLibTorch) {
  torch::manual_seed(2);
  const at::Tensor fp64 = at::randn({30}, at::kDouble), none = at::randn({0, 3});
  EXPECT_TRUE(ours(fp64).equal(libtorchs(fp64)));
  EXPECT_EQ(ours(none).sizes(), none.sizes());
  const at::Tensor x = at::randn({100});
  EXPECT_TRUE(demi::gelu(x).equal(at::gelu(x)));
  EXPECT_THROW(demi::gelu(x, "sigmoid"), c10::Error);
  EXPECT_THROW(demi::gelu(at::Tensor(), "tanh"), c10::Error);
  EXPECT_THROW(ours(at::ones({3}, at::kLong)), c10::Error);
}

TEST(GeluOp, HasGradientsOfGradients) {
  const auto second = [](const Function& f, const at::Tensor& x) {
    const auto first = torch::autograd::grad({f(x).sum()}, {x}, {}, true, true)[0];
    return torch::autograd::grad({first.sum()}, {x})[0];
  };
  const at::Tensor x = at::linspace(-3, 3, 40).requires_grad_();
  const at::Tensor exact = x.detach().to(at::kDouble).requires_grad_();
  expect_near(second(ours, x), second(libtorchs, exact), 1e-5);
}

TEST(GeluOp, ServesARegionIn16Bits) {
  torch::manual_seed(3);
  const at::Tensor x = at::randn({513}).to(at::kBFloat16);
  const Result plain = run(ours, x);
  Autocast region(torch::kCPU, torch::kBFloat16);
  for (const Function& f : {Function(ours), Function(libtorchs)}) {
    const Result seen = run(f, x);
    EXPECT_TRUE(seen.y.equal(plain.y));
    EXPECT_TRUE(seen.gradient.equal(plain.gradient));
  }
}

TEST(GeluOp, FollowsAPolicyThatNamesIt) {
  OpPolicy policy;
  policy.set("gelu", OpCategory::fp32);
  Autocast region(torch::kCPU, {.dtype = torch::kBFloat16, .policy = policy});
  const at::Tensor x = at::ones({4}, at::kBFloat16);
  EXPECT_EQ(libtorchs(x).scalar_type(), at::kFloat);
  EXPECT_EQ(ours(x).scalar_type(), at::kFloat);
}

TEST(GeluOp, IsLibTorchsWhereKernelsAreOff) {
  const at::Tensor x = at::linspace(-4, 4, 1001);
  setenv("DEMI_KERNELS", "aten", 1);
  EXPECT_TRUE(ours(x).equal(libtorchs(x)));
  unsetenv("DEMI_KERNELS");
  EXPECT_FALSE(ours(x).equal(libtorchs(x))) << "the same bits: was it demi's?";
}

}  // namespace
}  // namespace demi
