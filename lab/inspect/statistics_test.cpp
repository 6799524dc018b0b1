#include "lab/inspect/statistics.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <limits>

#include "demi/checkpoint/checkpoint_testing.h"
#include "demi/core/error.h"

namespace demi::inspect {
namespace {

using namespace checkpoint;  // NOLINT(google-build-using-namespace)

constexpr double kInf = std::numeric_limits<double>::infinity();
constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

class StatisticsOf : public CheckpointFolder {
 protected:
  Statistics of(const at::Tensor& tensor) {
    save_safetensors(folder_ / "x.safetensors", {{"x", tensor}});
    return statistics(contents(folder_ / "x.safetensors").tensors.at(0));
  }
};

// 0 to n - 1: mean (n - 1) / 2, variance with n - 1 in the denominator n (n + 1) / 12.
TEST_F(StatisticsOf, TheFirstWholeNumbersAreTheirFormulas) {
  for (const int64_t n : {int64_t{2}, int64_t{3}, int64_t{1000}, (int64_t{1} << 20) + 1,
                          (int64_t{1} << 21) + 12345}) {
    const Statistics s = of(at::arange(n, at::kFloat));
    const auto count = static_cast<double>(n);
    EXPECT_EQ(s.values, n);
    EXPECT_EQ(s.zeros, 1);
    EXPECT_EQ(s.min, 0);
    EXPECT_EQ(s.max, count - 1);
    EXPECT_DOUBLE_EQ(*s.mean, (count - 1) / 2);
    // A plain sum of n numbers is off by up to n x 2^-53 of it.
    EXPECT_NEAR(*s.std / std::sqrt(count * (count + 1) / 12), 1, (count + 8) * 0x1p-53) << n;
  }
}

// The naive formula (mean of squares less square of the mean) loses every digit here.
TEST_F(StatisticsOf, ASmallDeviationAroundALargeMeanIsKept) {
  const at::Tensor x = at::full({(1 << 20) + 10}, 1e9, at::kDouble);
  x.slice(0, 0, x.numel(), 2).add_(1);
  const Statistics s = of(x);
  EXPECT_NEAR(*s.mean, 1e9 + 0.5, 1e-6);
  EXPECT_NEAR(*s.std, 0.5, 1e-6);
}

TEST_F(StatisticsOf, NaNAndInfAreCountedAndLeftOut) {
  for (const at::ScalarType dtype : {at::kFloat, at::kHalf, at::kBFloat16, at::kDouble}) {
    const Statistics s =
        of(at::tensor(std::vector<double>{kNaN, -kInf, 3, 0, -0.0, kInf, kInf, -1}, at::kDouble)
               .to(dtype));
    EXPECT_EQ(s.values, 8);
    EXPECT_EQ(s.nan, 1);
    EXPECT_EQ(s.infinite, 3);
    EXPECT_EQ(s.zeros, 2);
    EXPECT_EQ(s.min, -1);
    EXPECT_EQ(s.max, 3);
    EXPECT_EQ(s.mean, 0.5);
    EXPECT_DOUBLE_EQ(*s.std, std::sqrt((2.5 * 2.5 + 2 * 0.5 * 0.5 + 1.5 * 1.5) / 3));
  }
}

TEST_F(StatisticsOf, WhatHasNoneOrOneFiniteValueHasNoDeviation) {
  const Statistics none = of(at::empty({0, 3}));
  EXPECT_EQ(none.values, 0);
  EXPECT_FALSE(none.min || none.max || none.mean || none.std);
  const Statistics nan = of(at::full({5}, kNaN));
  EXPECT_FALSE(nan.min || nan.max || nan.mean || nan.std);
  const Statistics one = of(at::scalar_tensor(-2, at::kLong));
  EXPECT_EQ(one.mean, -2);
  EXPECT_FALSE(one.std);
}

TEST_F(StatisticsOf, AWholePartWithoutFiniteValuesIsPassedOver) {
  at::Tensor x = at::full({(1 << 20) + 2}, kNaN);
  x[1 << 20] = 1;
  x[(1 << 20) + 1] = 3;
  const Statistics s = of(x);
  EXPECT_EQ(s.nan, 1 << 20);
  EXPECT_EQ(s.mean, 2);
  EXPECT_DOUBLE_EQ(*s.std, std::sqrt(2.0));
}

TEST_F(StatisticsOf, EveryDtypeIsRead) {
  for (const at::ScalarType dtype :
       {at::kDouble, at::kFloat, at::kHalf, at::kBFloat16, at::kFloat8_e4m3fn, at::kFloat8_e5m2,
        at::kLong, at::kInt, at::kShort, at::kChar, at::kByte, at::kUInt16, at::kUInt32,
        at::kUInt64}) {
    const Statistics s = of(at::tensor(std::vector<double>{0, 1, 2, 5}, at::kDouble).to(dtype));
    EXPECT_EQ(s.mean, 2) << dtype;
    EXPECT_EQ(s.max, 5) << dtype;
    EXPECT_EQ(s.zeros, 1) << dtype;
  }
  EXPECT_EQ(of(at::tensor(std::vector<double>{0, 1, 1, 0}, at::kDouble).to(at::kBool)).mean, 0.5);
  const Statistics complex = of(at::complex(at::tensor({1.F, 2.F}), at::tensor({0.F, 5.F})));
  EXPECT_EQ(complex.values, 4) << "real and imaginary parts";
  EXPECT_EQ(complex.mean, 2);
}

TEST_F(StatisticsOf, AFileThatEndsWhileItIsReadIsAnError) {
  const auto file = folder_ / "x.safetensors";
  save_safetensors(file, {{"x", at::ones({100})}});
  const Contents found = contents(file);
  std::filesystem::resize_file(file, std::filesystem::file_size(file) - 1);
  EXPECT_THROW(statistics(found.tensors[0]), DataError);
  std::filesystem::remove(file);
  EXPECT_THROW(statistics(found.tensors[0]), DataError);
}

}  // namespace
}  // namespace demi::inspect
