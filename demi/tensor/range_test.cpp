#include "demi/tensor/range.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cmath>
#include <limits>

namespace demi::tensor {
namespace {

constexpr double kInf = std::numeric_limits<double>::infinity();

// IEEE 754: fp16 rounds to Inf from 65520 on, half a step beyond its greatest number; bf16 and
// fp32 have greater ones.
TEST(BeyondRange, IsWhatRoundingMakesInf) {
  const auto of = [](std::vector<double> values, c10::ScalarType from, c10::ScalarType to) {
    return beyond_range(torch::tensor(values, torch::kDouble).to(from), to);
  };
  EXPECT_EQ(of({1, -65519}, torch::kDouble, torch::kHalf), std::nullopt);
  EXPECT_EQ(of({1, -65520}, torch::kFloat, torch::kHalf), -65520);
  EXPECT_EQ(of({70000, -65520, 3}, torch::kDouble, torch::kHalf), 70000);
  EXPECT_EQ(of({1, -1e300}, torch::kDouble, torch::kFloat), -1e300);
  EXPECT_EQ(of({std::ldexp(1, 128)}, torch::kDouble, torch::kBFloat16), std::ldexp(1, 128));
  EXPECT_EQ(of({3.4e38}, torch::kDouble, torch::kFloat), std::nullopt);
  EXPECT_EQ(of({3.4e38}, torch::kDouble, torch::kBFloat16), 3.4e38);
  EXPECT_EQ(of({1e300}, torch::kDouble, torch::kDouble), std::nullopt);
  EXPECT_EQ(of({448}, torch::kFloat8_e5m2, torch::kHalf), std::nullopt);
  EXPECT_EQ(of({}, torch::kDouble, torch::kHalf), std::nullopt);
}

TEST(BeyondRange, LeavesOutWhatIsNotFinite) {
  const auto values = torch::tensor({kInf, -kInf, std::nan(""), 1e5}, torch::kDouble);
  EXPECT_EQ(beyond_range(values, torch::kHalf), 1e5);
  EXPECT_EQ(beyond_range(values, torch::kFloat), std::nullopt);
}

TEST(BeyondRange, OfIntegersAndComplexNumbers) {
  const auto whole = torch::tensor({int64_t{1} << 40, int64_t{-1}}, torch::kLong);
  EXPECT_EQ(beyond_range(whole, torch::kInt), std::ldexp(1, 40));
  EXPECT_EQ(beyond_range(whole.narrow(0, 1, 1), torch::kByte), -1);
  EXPECT_EQ(beyond_range(whole, torch::kFloat), std::nullopt);
  EXPECT_EQ(beyond_range(torch::tensor({127.0, -128.0}), torch::kChar), std::nullopt);
  const auto pairs = torch::complex(torch::tensor({1.0, 2.0}, torch::kDouble),
                                    torch::tensor({3.0, -1e200}, torch::kDouble));
  EXPECT_EQ(beyond_range(pairs, torch::kComplexFloat), -1e200);
  EXPECT_EQ(beyond_range(torch::ones(3, torch::kBool), torch::kHalf), std::nullopt);
}

}  // namespace
}  // namespace demi::tensor
