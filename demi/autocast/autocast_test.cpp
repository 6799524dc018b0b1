#include "demi/autocast/autocast.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

namespace demi {
namespace {

TEST(Autocast, MatrixProductsRunInTheRegionsDtype) {
  const auto a = torch::ones({2, 2}), b = torch::ones({2, 2});
  Autocast region(torch::kCPU);
  EXPECT_EQ(torch::mm(a, b).scalar_type(), torch::kBFloat16);
}

TEST(Autocast, NestingRestoresWhatWasOutsideAlsoByAnException) {
  const auto a = torch::ones({2, 2}), b = torch::ones({2, 2});
  {
    Autocast outer(torch::kCPU, torch::kBFloat16);
    {
      Autocast off(torch::kCPU, AutocastOptions{.enabled = false});
      EXPECT_EQ(torch::mm(a, b).scalar_type(), torch::kFloat);
    }
    try {
      Autocast half(torch::kCPU, torch::kHalf);
      throw std::runtime_error("x");
    } catch (const std::runtime_error&) {
    }
    EXPECT_EQ(torch::mm(a, b).scalar_type(), torch::kBFloat16);
  }
  EXPECT_EQ(torch::mm(a, b).scalar_type(), torch::kFloat);
}

}  // namespace
}  // namespace demi
