#include "demi/monitor/harm_cause.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <numeric>

#include "demi/autocast/op_policy.h"

namespace demi::monitor {
namespace {

using quantization::Product;

HarmCause kind_of(const ProductLoss& product) {
  const OperandLoss& loss = product.operands;
  if (loss.of_underflowed > 0.5 * loss.lost) return HarmCause::underflow;
  if (loss.of_saturated > 0.5 * loss.lost) return HarmCause::saturation;
  return HarmCause::rounding;
}

const ProductLoss& loss_of(const LayerInRecipe& layer, Product product) {
  return layer.products[static_cast<std::size_t>(product)];
}

void find_cause(std::vector<LayerInRecipe>& layers, std::size_t at,
                const std::vector<double>& shares) {
  LayerInRecipe& harmed = layers[at];
  harmed.cause = HarmCause::other_layers;
  const auto most = std::ranges::max_element(shares);
  if (most == shares.end() || *most <= 0 ||
      *most < std::accumulate(shares.begin(), shares.end(), 0.0) / 2)
    return;
  const auto from = static_cast<std::size_t>(most - shares.begin());
  std::vector<Product> reaching{Product::output};
  if (from == at) reaching.push_back(Product::weight_gradient);
  if (from > at) reaching.push_back(Product::input_gradient);
  harmed.product = std::ranges::max(
      reaching, {}, [&](Product product) { return loss_of(layers[from], product).error; });
  harmed.from = layers[from].layer;
  harmed.cause = kind_of(loss_of(layers[from], harmed.product));
}

}  // namespace

std::string_view name_of(HarmCause cause) {
  constexpr std::array<std::string_view, 6> kNames{"none",      "rounding",     "saturation",
                                                   "underflow", "other layers", "lower precision"};
  return kNames[static_cast<std::size_t>(cause)];
}

std::string_view name_of(quantization::Product product) {
  constexpr std::array<std::string_view, 3> kNames{"output", "input gradient", "weight gradient"};
  return kNames[static_cast<std::size_t>(product)];
}

void find_causes(RecipeWhatIfResult& result, const std::vector<std::vector<double>>& shares,
                 const std::vector<bool>& harmed_in_region) {
  for (std::size_t i = 0; i < result.layers.size(); ++i) {
    if (!result.layers[i].harmed) continue;
    if (harmed_in_region[i])
      result.layers[i].cause = HarmCause::lower_precision;
    else
      find_cause(result.layers, i, shares[i]);
  }
}

std::string cause_text(const LayerInRecipe& layer) {
  switch (layer.cause) {
    case HarmCause::none:
      return "";
    case HarmCause::other_layers:
      return "of several layers together";
    case HarmCause::lower_precision:
      return "bf16 alone";
    default:
      return fmt::format("{} of its {}{}", name_of(layer.cause), name_of(layer.product),
                         layer.from == layer.layer ? "" : " in " + layer.from);
  }
}

std::int64_t RecipeWhatIfResult::harmed() const {
  std::int64_t count = 0;
  for (const LayerInRecipe& layer : layers) count += layer.harmed;
  return count;
}

std::string RecipeWhatIfResult::policy_text() const {
  std::string text;
  for (const std::string& name : left_out)
    for (const LayerInRecipe& layer : layers)
      if (layer.layer == name)
        text += fmt::format("# part {}: in {} its weights' gradient is off by {:.2g}{}{}\n", name,
                            recipe, layer.error, layer.harmed ? ", " : "", cause_text(layer));
  return text + policy.to_string();
}

}  // namespace demi::monitor
