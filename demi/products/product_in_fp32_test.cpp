#include "demi/products/product_in_fp32.h"

#include <ATen/Parallel.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <tuple>
#include <vector>

namespace demi::products {
namespace {

// Depths beside a pair and beside the rows that are taken at a time, narrow and wide last panels.
const std::vector<std::tuple<int64_t, int64_t, int64_t>> kSizes{
    {1, 1, 1},       {3, 7, 5},      {5, 255, 16}, {257, 256, 64}, {17, 257, 65},
    {256, 512, 130}, {300, 777, 33}, {0, 4, 4},    {4, 0, 4},      {4, 4, 0}};

TEST(ProductInFp32, IsTheProductOfTheNumbersInFp64) {
  torch::manual_seed(1);
  for (const at::ScalarType dtype : {at::kBFloat16, at::kFloat})
    for (const auto& [m, k, n] : kSizes) {
      const at::Tensor a = torch::randn({m, k}).to(dtype), b = torch::randn({k, n}).to(dtype);
      const at::Tensor truth = a.to(at::kDouble).mm(b.to(at::kDouble));
      const double allowed = 1e-6 * static_cast<double>(k);
      const auto expect_near = [&](const at::Tensor& left, const at::Tensor& right) {
        const at::Tensor c = product_in_fp32(left, right);
        ASSERT_EQ(c.scalar_type(), at::kFloat);
        ASSERT_EQ(c.sizes(), truth.sizes());
        EXPECT_TRUE(at::allclose(c.to(at::kDouble), truth, 1e-6, allowed));
      };
      expect_near(a, b);
      expect_near(a.t().contiguous().t(), b.t().contiguous().t());
      expect_near(torch::cat({a, a}, 1).narrow(1, 0, k), torch::cat({b, b}, 0).narrow(0, 0, k));
    }
}

// Sums that bf16 would round: 256 + 1 + 1 + ...
TEST(ProductInFp32, IsNotRoundedTo16Bits) {
  at::Tensor a = torch::ones({2, 300}).to(at::kBFloat16);
  a[0][0] = 256;
  const at::Tensor c = product_in_fp32(a, torch::ones({300, 3}).to(at::kBFloat16));
  EXPECT_EQ(c[0][2].item<float>(), 256 + 299);
  EXPECT_EQ(c[1][0].item<float>(), 300);
}

TEST(ProductInFp32, TheSameBitsForAnyNumberOfThreads) {
  torch::manual_seed(2);
  const at::Tensor a = torch::randn({600, 300}).to(at::kBFloat16),
                   b = torch::randn({300, 200}).to(at::kBFloat16);
  const int before = at::get_num_threads();
  at::set_num_threads(1);
  const at::Tensor one = product_in_fp32(a, b);
  at::set_num_threads(3);
  EXPECT_TRUE(product_in_fp32(a, b).equal(one));
  at::set_num_threads(before);
}

}  // namespace
}  // namespace demi::products
