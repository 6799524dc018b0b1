#include "demi/activation/activation.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <functional>

#include "demi/autocast/autocast.h"
#include "demi/autocast/policy.h"

namespace demi {
namespace {

using Function = std::function<at::Tensor(const at::Tensor&)>;

struct Both {
  std::string name;
  Function ours, libtorchs;
};

std::vector<Both> both() {
  return {{"gelu", [](auto& x) { return demi::gelu(x); }, [](auto& x) { return at::gelu(x); }},
          {"gelu tanh", [](auto& x) { return demi::gelu(x, "tanh"); },
           [](auto& x) { return at::gelu(x, "tanh"); }},
          {"silu", [](auto& x) { return demi::silu(x); }, [](auto& x) { return at::silu(x); }}};
}

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
TEST(ActivationOp, IsThatOfFp64) {
  torch::manual_seed(0);
  for (const auto& [dtype, tolerance] :
       {std::pair{at::kFloat, 4e-6}, {at::kHalf, 2.1e-3}, {at::kBFloat16, 1.7e-2}}) {
    for (const at::Tensor& x : {at::randn({70, 1031}), at::randn({33, 40}).t(), at::randn({}),
                                at::randn({4, 6, 5, 7}).permute({0, 3, 1, 2})}) {
      for (const Both& each : both()) {
        SCOPED_TRACE(each.name + " " + c10::toString(dtype));
        const at::Tensor given = (2 * x).clamp(-7.9, 7.9).to(dtype);
        const Result ours = run(each.ours, given),
                     exact = run(each.libtorchs, given.to(at::kDouble));
        expect_near(ours.y, exact.y, tolerance);
        expect_near(ours.gradient, exact.gradient, tolerance);
        EXPECT_EQ(ours.y.scalar_type(), dtype);
        EXPECT_EQ(ours.y.strides(), given.strides());
      }
    }
  }
}

// Parts of a tensor, whose memory has gaps, and a gradient in another order of memory.
TEST(ActivationOp, TakesAnyStrides) {
  torch::manual_seed(1);
  const at::Tensor whole = at::randn({60, 50}), part = whole.slice(1, 3, 41);
  for (const Both& each : both()) {
    EXPECT_TRUE(each.ours(part).equal(each.ours(part.contiguous()))) << each.name;
    const at::Tensor leaf = part.clone().requires_grad_(), other = part.clone().requires_grad_();
    const at::Tensor gradient = at::randn({38, 60}).t();
    each.ours(leaf).backward(gradient);
    each.ours(other).backward(gradient.contiguous());
    EXPECT_TRUE(leaf.grad().equal(other.grad())) << each.name;
  }
}

TEST(ActivationOp, LeavesTheRestToLibTorch) {
  torch::manual_seed(2);
  for (const Both& each : both()) {
    const at::Tensor fp64 = at::randn({30}, at::kDouble), none = at::randn({0, 3});
    EXPECT_TRUE(each.ours(fp64).equal(each.libtorchs(fp64)));
    EXPECT_EQ(each.ours(none).sizes(), none.sizes());
  }
  EXPECT_THROW(demi::gelu(at::ones({2}), "sigmoid"), c10::Error);
}

TEST(ActivationOp, HasGradientsOfGradients) {
  for (const Both& each : both()) {
    const auto second = [&](const Function& f, const at::Tensor& x) {
      const auto first = torch::autograd::grad({f(x).sum()}, {x}, {}, true, true)[0];
      return torch::autograd::grad({first.sum()}, {x})[0];
    };
    const at::Tensor x = at::linspace(-3, 3, 40).requires_grad_();
    const at::Tensor exact = x.detach().to(at::kDouble).requires_grad_();
    expect_near(second(each.ours, x), second(each.libtorchs, exact), 1e-5);
  }
}

TEST(ActivationOp, ServesARegionIn16Bits) {
  torch::manual_seed(3);
  const at::Tensor x = at::randn({513}).to(at::kBFloat16);
  for (const Both& each : both()) {
    const at::Tensor plain = run(each.ours, x).y;
    Autocast region(torch::kCPU, torch::kBFloat16);
    const Result ours = run(each.ours, x), op = run(each.libtorchs, x);
    EXPECT_TRUE(op.y.equal(plain)) << each.name;
    EXPECT_TRUE(ours.y.equal(plain)) << each.name;
    EXPECT_TRUE(op.gradient.equal(ours.gradient)) << each.name;
  }
}

TEST(ActivationOp, FollowsAPolicyThatNamesIt) {
  OpPolicy policy;
  policy.set("gelu", OpCategory::fp32);
  Autocast region(torch::kCPU, {.dtype = torch::kBFloat16, .policy = policy});
  const at::Tensor x = at::ones({4}, at::kBFloat16);
  EXPECT_EQ(at::gelu(x).scalar_type(), at::kFloat);
  EXPECT_EQ(demi::gelu(x).scalar_type(), at::kFloat);
  EXPECT_EQ(demi::silu(x).scalar_type(), at::kBFloat16);
}

TEST(ActivationOp, IsLibTorchsWhereKernelsAreOff) {
  const at::Tensor x = at::linspace(-4, 4, 1001);
  setenv("DEMI_KERNELS", "aten", 1);
  EXPECT_TRUE(demi::gelu(x).equal(at::gelu(x)));
  EXPECT_TRUE(demi::silu(x).equal(at::silu(x)));
  unsetenv("DEMI_KERNELS");
}

}  // namespace
}  // namespace demi
