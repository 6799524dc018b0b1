#include "demi/monitor/harm_cause.h"

#include <gtest/gtest.h>

#include <array>
#include <string>
#include <vector>

namespace demi::monitor {
namespace {

constexpr std::array<double, 3> kEven{0.01, 0.01, 0.01};

/// Three layers, of which one is harmed. `errors`: of each layer's output, input gradient and
/// weight gradient.
RecipeWhatIfResult result_of(const std::vector<std::array<double, 3>>& errors, std::size_t harmed) {
  RecipeWhatIfResult result;
  for (std::size_t i = 0; i < errors.size(); ++i) {
    LayerInRecipe layer{.layer = "layers." + std::to_string(i), .harmed = i == harmed};
    for (std::size_t product = 0; product < 3; ++product)
      layer.products[product].error = errors[i][product];
    result.layers.push_back(layer);
  }
  return result;
}

/// What is said of the harmed layer, to whose error each layer adds `shares`.
std::string cause_of(RecipeWhatIfResult result, std::size_t harmed,
                     const std::vector<double>& shares, bool in_region = false) {
  std::vector<std::vector<double>> all(result.layers.size());
  std::vector<bool> harmed_in_region(result.layers.size());
  all[harmed] = shares;
  harmed_in_region[harmed] = in_region;
  find_causes(result, all, harmed_in_region);
  return cause_text(result.layers[harmed]);
}

TEST(HarmCause, IsTheWorstOfTheProductsThatReachTheLayer) {
  // A layer reaches itself by its output and its weight gradient, one before it by its output, one
  // behind it by its input gradient, too.
  EXPECT_EQ(cause_of(result_of({kEven, {0.1, 0.9, 0.2}, kEven}, 1), 1, {0, 1, 0}),
            "rounding of its weight gradient");
  EXPECT_EQ(cause_of(result_of({kEven, {0.3, 0.9, 0.2}, kEven}, 1), 1, {0, 1, 0}),
            "rounding of its output");
  EXPECT_EQ(cause_of(result_of({{0.1, 0.8, 0.9}, kEven, kEven}, 1), 1, {1, 0, 0}),
            "rounding of its output in layers.0");
  EXPECT_EQ(cause_of(result_of({kEven, kEven, {0.1, 0.8, 0.9}}, 1), 1, {0, 0, 1}),
            "rounding of its input gradient in layers.2");
}

TEST(HarmCause, IsOfSeveralLayersIfNoneHasHalfOfTheError) {
  const RecipeWhatIfResult result = result_of({kEven, kEven, kEven}, 1);
  EXPECT_EQ(cause_of(result, 1, {0.3, 0.4, 0.3}), "of several layers together");
  EXPECT_EQ(cause_of(result, 1, {0.2, 0.5, 0.3}), "rounding of its output");
  EXPECT_EQ(cause_of(result, 1, {0, 0, 0}), "of several layers together");
  EXPECT_EQ(cause_of(result, 1, {}), "of several layers together") << "not measured";
}

TEST(HarmCause, IsTheRegionIfThatHarmsTheLayerAlone) {
  EXPECT_EQ(cause_of(result_of({kEven, kEven, kEven}, 2), 2, {0, 0, 1}, /*in_region=*/true),
            "bf16 alone");
}

// More than half of what the operands lost.
TEST(HarmCause, NamesWhatTheOperandsLost) {
  const auto said = [](double saturated, double underflowed) {
    RecipeWhatIfResult result = result_of({kEven}, 0);
    result.layers[0].products[0].operands = {
        .lost = 1, .of_saturated = saturated, .of_underflowed = underflowed};
    return cause_of(result, 0, {1});
  };
  EXPECT_EQ(said(0, 0.6), "underflow of its output");
  EXPECT_EQ(said(0.6, 0.4), "saturation of its output");
  EXPECT_EQ(said(0.4, 0.4), "rounding of its output");
}

TEST(HarmCause, IsNoneForALayerThatIsNotHarmed) {
  RecipeWhatIfResult result = result_of({kEven, kEven}, 1);
  find_causes(result, {{1, 0}, {0, 1}}, {false, false});
  EXPECT_EQ(result.layers[0].cause, HarmCause::none);
  EXPECT_EQ(cause_text(result.layers[0]), "");
}

}  // namespace
}  // namespace demi::monitor
