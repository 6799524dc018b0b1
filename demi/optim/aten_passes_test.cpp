// The passes by LibTorch's tensor operations: fp64, and fp32 where demi's kernels are off.
#include "demi/step/aten_passes.h"

#include <gtest/gtest.h>

#include <cmath>

#include "demi/optim/kinds_testing.h"
#include "demi/optim/testing.h"

namespace demi::optim {
namespace {

using namespace testing;

/// The parameter after the optimizer's steps, and its state.
std::vector<at::Tensor> after_steps(Optimizer& optimizer, const at::Tensor& p, int steps) {
  for (int step = 0; step < steps; ++step) {
    set_grad(p, gradient(p, p.scalar_type(), step));
    optimizer.step();
  }
  std::vector<at::Tensor> all{p.detach()};
  for (const auto& [name, tensor] : optimizer.state_tensors()) all.push_back(tensor);
  return all;
}

// LibTorch's FP32 root is one unit off for 17 % of all numbers on some processors; the reference
// takes the processor's, which is the nearest number.
TEST(AtenPasses, RootsAreTheNearestNumbers) {
  for (const Kind& kind : kKinds) {
    if (kind.id != KindId::kAdam && kind.id != KindId::kAmsgrad) continue;
    SCOPED_TRACE(kind.name);
    std::vector<std::vector<at::Tensor>> seen;
    for (const char* path : {"reference", "aten"}) {
      const ScopedEnvironment forced("DEMI_KERNELS", path);
      const at::Tensor p = parameter({100003});
      const auto optimizer = kind.make({p});
      seen.push_back(after_steps(*optimizer, p, 3));
    }
    for (size_t i = 0; i < seen[0].size(); ++i) EXPECT_TRUE(at::equal(seen[0][i], seen[1][i])) << i;
  }
}

// Stepped like a parameter of one element, which has the same numbers.
TEST(AtenPasses, ParametersWithoutDimensionsAreStepped) {
  const ScopedEnvironment forced("DEMI_KERNELS", "aten");
  for (const Kind& kind : kKinds) {
    SCOPED_TRACE(kind.name);
    for (const auto dtype : {at::kFloat, at::kDouble, at::kBFloat16}) {
      const at::Tensor none = parameter({}, dtype), one = parameter({1}, dtype);
      const auto a = kind.make({none}), b = kind.make({one});
      const auto seen = after_steps(*a, none, 3), expected = after_steps(*b, one, 3);
      ASSERT_EQ(seen.size(), expected.size());
      for (size_t i = 0; i < seen.size(); ++i)
        EXPECT_TRUE(at::equal(seen[i].reshape({-1}), expected[i].reshape({-1})))
            << dtype << " " << i;
      EXPECT_EQ(none.dim(), 0);
      EXPECT_FALSE(at::equal(none, parameter({}, dtype))) << dtype;
    }
  }
}

TEST(AtenPasses, Fp64GradientsAboveTheLargestFp32NumberAreFinite) {
  for (const double large : {0x1p130, 0x1p1000}) {  // the squares of the second overflow FP64
    const at::Tensor p = torch::zeros({2}, at::kDouble).requires_grad_();
    SGD sgd({p}, SGDOptions(0x1p-10));
    set_grad(p, torch::tensor({large, -1.0}, at::kDouble));
    sgd.step();
    EXPECT_FALSE(sgd.last_step().skipped());
    EXPECT_EQ(p[0].item<double>(), -large * 0x1p-10);
    EXPECT_EQ(p[1].item<double>(), 0x1p-10);
    for (const double bad : {HUGE_VAL, std::nan("")}) {
      set_grad(p, torch::tensor({large, bad}, at::kDouble));
      sgd.step();
      EXPECT_TRUE(sgd.last_step().skipped()) << bad;
    }
    EXPECT_EQ(p[1].item<double>(), 0x1p-10);
  }
}

}  // namespace
}  // namespace demi::optim
