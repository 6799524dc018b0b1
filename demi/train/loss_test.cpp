#include "demi/train/loss.h"

#include <gtest/gtest.h>
#include <torch/types.h>

#include <cmath>

#include "demi/core/error.h"

namespace demi::train {
namespace {

TEST(Loss, CrossEntropyIsMinusLogOfTheSoftmax) {
  const auto logits = torch::tensor({{1.0F, 2.0F}, {0.0F, 0.0F}});
  const double first = std::log(1 + std::exp(1.0)),
               second = std::log(2.0);  // for the classes 0 and 1
  EXPECT_NEAR(loss_of(Loss::cross_entropy, logits, torch::tensor({0, 1})).item<double>(),
              (first + second) / 2, 1e-6);
}

TEST(Loss, IsComputedInFp32FromSixteenBitOutputs) {
  const auto logits = torch::tensor({{1.0F, 2.0F}}).to(torch::kHalf);
  EXPECT_EQ(loss_of(Loss::cross_entropy, logits, torch::tensor({0})).scalar_type(), torch::kFloat);
  EXPECT_EQ(loss_of(Loss::mse, logits, logits).scalar_type(), torch::kFloat);
}

TEST(Loss, BinaryCrossEntropyTakesLabelsOfAnyShapeAndType) {
  const auto logits = torch::tensor({{0.0F}, {2.0F}});
  const double expected = (std::log(2.0) + std::log(1 + std::exp(-2.0))) / 2;
  EXPECT_NEAR(loss_of(Loss::bce_with_logits, logits, torch::tensor({0, 1})).item<double>(),
              expected, 1e-6);
  EXPECT_EQ(right_ones(Loss::bce_with_logits, logits, torch::tensor({1, 1})).sum().item<int64_t>(),
            1);
}

TEST(Loss, CountsTheHighestLogit) {
  const auto logits = torch::tensor({{1.0F, 2.0F}, {3.0F, 0.0F}, {0.0F, 1.0F}});
  EXPECT_EQ(right_ones(Loss::cross_entropy, logits, torch::tensor({1, 0, 0})).sum().item<int64_t>(),
            2);
  EXPECT_FALSE(right_ones(Loss::mse, logits, logits).defined());
}

TEST(Loss, Names) {
  EXPECT_EQ(parse_loss("bce"), Loss::bce_with_logits);
  EXPECT_THROW(parse_loss("bse"), UsageError);
}

}  // namespace
}  // namespace demi::train
