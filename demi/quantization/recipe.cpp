#include "demi/quantization/recipe.h"

#include <algorithm>
#include <array>
#include <string>
#include <vector>

#include "demi/core/error.h"
#include "demi/core/nearest.h"

namespace demi::quantization {
namespace {

using kernels::NarrowFormat;
using kernels::Scaling;

constexpr Operand kOfTensor{.format = NarrowFormat::e4m3, .scaling = Scaling::tensor};
constexpr Operand kGradientOfTensor{.format = NarrowFormat::e5m2, .scaling = Scaling::tensor};
constexpr Operand kOfRow{.format = NarrowFormat::e4m3, .scaling = Scaling::row_power_of_two};
constexpr Operand kMx{.format = NarrowFormat::e4m3, .scaling = Scaling::mx_ceil};
constexpr Operand kAsItIs{.is_quantized = false};
constexpr Operand kOf128{.format = NarrowFormat::e4m3, .scaling = Scaling::block_128};
constexpr Operand kOf128Squared{.format = NarrowFormat::e4m3, .scaling = Scaling::square_128};
constexpr Operand kNv{.format = NarrowFormat::e2m1, .scaling = Scaling::nv};
constexpr Operand kNvWeight{.format = NarrowFormat::e2m1, .scaling = Scaling::nv_square};
constexpr Operand kNvByChance{
    .format = NarrowFormat::e2m1, .scaling = Scaling::nv, .by_chance = true};
constexpr Operand kNvTransformed{
    .format = NarrowFormat::e2m1, .scaling = Scaling::nv, .hadamard = true};
constexpr Operand kNvTransformedByChance{
    .format = NarrowFormat::e2m1, .scaling = Scaling::nv, .by_chance = true, .hadamard = true};

constexpr std::array<Recipe, 6> kRecipes{{
    {.name = "fp8",
     .summary = "E4M3, gradients E5M2, a scale for each tensor",
     .input = kOfTensor,
     .weight = kOfTensor,
     .gradient = kGradientOfTensor,
     .weight_for_input = kOfTensor,
     .gradient_for_weight = kGradientOfTensor,
     .input_for_weight = kOfTensor,
     .takes_convolutions = true},
    {.name = "fp8:rowwise",
     .summary = "E4M3, a power of two as scale for each row",
     .input = kOfRow,
     .weight = kOfRow,
     .gradient = kOfRow,
     .weight_for_input = kOfRow,
     .gradient_for_weight = kOfRow,
     .input_for_weight = kOfRow},
    {.name = "fp8:blocks",
     .summary = "E4M3, FP32 scales for 1 x 128, of weights for 128 x 128",
     .input = kOf128,
     .weight = kOf128Squared,
     .gradient = kOf128,
     .weight_for_input = kOf128Squared,
     .gradient_for_weight = kOf128,
     .input_for_weight = kOf128},
    {.name = "mxfp8",
     .summary = "E4M3, a power of two as scale for 32 neighbours",
     .input = kMx,
     .weight = kMx,
     .gradient = kMx,
     .weight_for_input = kMx,
     .gradient_for_weight = kMx,
     .input_for_weight = kMx},
    {.name = "mxfp8:wgrad-bf16",
     .summary = "as mxfp8, the weight's gradient of 16 bits",
     .input = kMx,
     .weight = kMx,
     .gradient = kMx,
     .weight_for_input = kMx,
     .gradient_for_weight = kAsItIs,
     .input_for_weight = kAsItIs},
    {.name = "nvfp4",
     .summary = "E2M1, E4M3 scales for 16, of weights for 16 x 16, gradients by chance",
     .input = kNv,
     .weight = kNvWeight,
     .gradient = kNvByChance,
     .weight_for_input = kNvWeight,
     .gradient_for_weight = kNvTransformedByChance,
     .input_for_weight = kNvTransformed,
     .last_layers_kept = 0.15},
}};

}  // namespace

std::span<const Recipe> recipes() { return kRecipes; }

const Recipe* find_recipe(std::string_view name) {
  const auto* found = std::ranges::find(kRecipes, name, &Recipe::name);
  return found == kRecipes.end() ? nullptr : found;
}

const Recipe& parse_recipe(std::string_view name) {
  if (const Recipe* found = find_recipe(name)) return *found;
  std::vector<std::string> known;
  for (const Recipe& recipe : kRecipes) known.emplace_back(recipe.name);
  throw UsageError({.where = "quantization.parse_recipe",
                    .what = "no recipe of that name",
                    .seen = name,
                    .advice = did_you_mean(name, known)});
}

}  // namespace demi::quantization
