// Products of which half the numbers are copies, against the whole product, which computes all.
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cstdlib>
#include <vector>

#include "demi/autocast/autocast.h"
#include "demi/products/matrix_product.h"

namespace demi::products {
namespace {

/// Of each size with one, some and many parts, and with sums of one, several and split chains.
TEST(SymmetricProduct, HasTheBitsOfTheWholeProduct) {
  torch::manual_seed(1);
  const int before = at::get_num_threads();
  for (const int threads : {1, 2, 5}) {
    at::set_num_threads(threads);
    for (const std::int64_t size : {1, 5, 64, 85, 169, 200, 600, 1100})
      for (const std::int64_t depth : {3, 300, 4200}) {
        if (size * depth > 600 * 4200) continue;
        const at::Tensor a = torch::randn({size, depth});
        const at::Tensor gram = symmetric_product({}, a, a.mT());
        EXPECT_TRUE(at::equal(gram, matrix_product({}, a, a.mT()))) << size << " x " << depth;
        if (size > 600) continue;
        const at::Tensor polynomial = symmetric_product(gram, gram, gram, -4.775, 2.0315);
        EXPECT_TRUE(at::equal(polynomial, matrix_product(gram, gram, gram, -4.775, 2.0315)))
            << size << " x " << depth;
      }
  }
  at::set_num_threads(before);
}

TEST(SymmetricProduct, TakesABatchAndColumnsThatAreDense) {
  torch::manual_seed(2);
  const at::Tensor batch = torch::randn({3, 200, 70}), tall = torch::randn({70, 200}).t();
  EXPECT_TRUE(
      at::equal(symmetric_product({}, batch, batch.mT()), matrix_product({}, batch, batch.mT())));
  EXPECT_TRUE(at::equal(symmetric_product({}, tall, tall.t()), matrix_product({}, tall, tall.t())));
}

TEST(SymmetricProduct, NaNAndInfReachTheirRowsAndColumns) {
  const at::Tensor a = torch::ones({100, 20});
  a[7][3] = NAN;
  a[90][3] = INFINITY;
  const at::Tensor seen = symmetric_product({}, a, a.t());
  EXPECT_TRUE(seen[7].isnan().all().item<bool>());
  EXPECT_TRUE(seen.t()[7].isnan().all().item<bool>());
  EXPECT_EQ(seen.isnan().sum().item<std::int64_t>(), 199);
  EXPECT_EQ(seen.isinf().sum().item<std::int64_t>(), 197);
}

TEST(SymmetricProduct, OfOtherDtypesAndOfGradientsIsTheWholeProduct) {
  torch::manual_seed(3);
  for (const auto dtype : {torch::kBFloat16, torch::kDouble}) {
    const at::Tensor a = torch::randn({90, 30}).to(dtype);
    EXPECT_TRUE(at::equal(symmetric_product({}, a, a.t()), matrix_product({}, a, a.t())));
  }
  const at::Tensor a = torch::randn({90, 30}).requires_grad_(),
                   b = a.detach().clone().requires_grad_();
  symmetric_product({}, a, a.t()).square().sum().backward();
  matrix_product({}, b, b.t()).square().sum().backward();
  EXPECT_TRUE(at::equal(a.grad(), b.grad()));
}

// Outside of the kernels, too, an optimizer's products in FP32 are not rounded by a region.
TEST(MatrixProduct, OfLibTorchKeepsItsDtypeInARegion) {
  torch::manual_seed(4);
  const at::Tensor a = torch::randn({40, 50}), b = torch::randn({50, 30}),
                   addend = torch::randn({40, 30}), batch = torch::randn({3, 40, 50});
  const auto products = [&] {
    return std::vector<at::Tensor>{
        matrix_product({}, a, b, 1, 2), matrix_product(addend, a, b, 0.5, 2),
        matrix_product({}, batch, b.expand({3, 50, 30})),
        matrix_product(addend.expand({3, 40, 30}), batch, b.expand({3, 50, 30}))};
  };
  const at::Tensor in_fp64 = a.to(at::kDouble).mm(b.to(at::kDouble)),
                   of_batch = batch.to(at::kDouble).matmul(b.to(at::kDouble));
  const std::vector<at::Tensor> exact{2 * in_fp64, 0.5 * addend + 2 * in_fp64, of_batch,
                                      addend + of_batch};
  setenv("DEMI_KERNELS", "aten", 1);
  {
    const Autocast region(torch::kCPU, torch::kBFloat16);
    const std::vector<at::Tensor> seen = products();
    for (std::size_t i = 0; i < seen.size(); ++i) {
      EXPECT_EQ(seen[i].scalar_type(), at::kFloat) << i;
      EXPECT_TRUE(seen[i].to(at::kDouble).allclose(exact[i], 1e-5, 1e-5)) << i;
    }
  }
  unsetenv("DEMI_KERNELS");
}

}  // namespace
}  // namespace demi::products
