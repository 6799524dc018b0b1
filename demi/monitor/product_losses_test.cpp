#include "demi/monitor/product_losses.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cmath>
#include <limits>
#include <memory>

#include "demi/quantization/recipe.h"

namespace demi::monitor {
namespace {

using quantization::Operand;

TEST(ProductSums, ErrorAndCosineAreThoseOfTheVectors) {
  // (3, 4) for (3, 0): the error's square is 16, the exact one's 9, the result's 25, their dot 9.
  const ProductSums sums{.error = 16, .exact = 9, .result = 25, .dot = 9};
  EXPECT_DOUBLE_EQ(sums.relative_error(), 4.0 / 3);
  EXPECT_DOUBLE_EQ(sums.cosine(), 9.0 / 15);
  ProductSums twice = sums;
  twice += sums;
  EXPECT_DOUBLE_EQ(twice.relative_error(), 4.0 / 3);
}

TEST(ProductSums, OfZerosAndOfWhatIsNotFinite) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  EXPECT_EQ(ProductSums().relative_error(), 0);
  EXPECT_EQ(ProductSums().cosine(), 1);
  const ProductSums from_zero{.error = 1, .exact = 0, .result = 1};
  EXPECT_EQ(from_zero.relative_error(), kInfinity);
  EXPECT_EQ(from_zero.cosine(), 0);
  const ProductSums nan{.error = NAN, .exact = 1, .result = NAN, .dot = NAN};
  EXPECT_EQ(nan.relative_error(), kInfinity);
  EXPECT_EQ(nan.cosine(), 0);
}

/// What the left operand, (1, 1), lost.
OperandLoss loss_of(float given, float read, bool by_chance) {
  const quantization::QuantizedWeight weight(quantization::parse_recipe("mxfp8"), 0, 1,
                                             std::make_shared<quantization::RecipeRun>());
  const Operand how{.by_chance = by_chance}, exact{.is_quantized = false};
  const at::Tensor one = at::ones({1, 1});
  ProductLosses losses;
  losses.on_product(weight, quantization::Product::output, {one * given, one * read, {}, &how},
                    {one, one, {}, &exact}, one * read, [&] { return one * given; });
  return losses.take().at(0)[0].operands;
}

// Rounding to nearest loses at most a third, by chance less than a half: what lost more was beyond
// the format.
TEST(ProductLosses, CountsWhatSaturatedAndWhatBecame0) {
  for (const bool by_chance : {false, true}) {
    EXPECT_EQ(loss_of(1.4F, 1, by_chance).saturated, 0);
    EXPECT_EQ(loss_of(1.8F, 1, by_chance).saturated, by_chance ? 0 : 1);
    EXPECT_EQ(loss_of(-2.1F, -1, by_chance).saturated, 1);
    const OperandLoss underflow = loss_of(1, 0, by_chance);
    EXPECT_EQ(underflow.saturated, 0);
    EXPECT_EQ(underflow.underflowed, 1);
    EXPECT_DOUBLE_EQ(underflow.of_underflowed, 1);
  }
}

}  // namespace
}  // namespace demi::monitor
