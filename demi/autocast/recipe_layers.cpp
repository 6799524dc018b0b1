#include "demi/autocast/recipe_layers.h"

#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/rnn.h>

#include <algorithm>
#include <cmath>

#include "demi/autocast/op_policy.h"
#include "demi/core/error.h"

namespace demi {
namespace {

bool has_no_recipe(const torch::nn::Module& module) {
  const auto is = [&]<class Impl>(const Impl*) {
    return dynamic_cast<const Impl*>(&module) != nullptr;
  };
  using namespace torch::nn;
  return is(static_cast<const EmbeddingImpl*>(nullptr)) ||
         is(static_cast<const EmbeddingBagImpl*>(nullptr)) ||
         is(static_cast<const LSTMImpl*>(nullptr)) || is(static_cast<const GRUImpl*>(nullptr)) ||
         is(static_cast<const RNNImpl*>(nullptr)) ||
         is(static_cast<const LSTMCellImpl*>(nullptr)) ||
         is(static_cast<const GRUCellImpl*>(nullptr)) ||
         is(static_cast<const RNNCellImpl*>(nullptr));
}

}  // namespace

std::vector<RecipeLayer> layers_of_recipe(const quantization::Recipe& recipe,
                                          const torch::nn::Module& module) {
  std::vector<RecipeLayer> layers;
  const auto add = [&](const std::string& name, const torch::nn::Module& one) {
    if (has_no_recipe(one)) return;
    RecipeLayer layer{.name = name, .weights = {}, .others = {}, .is_linear = true};
    for (const at::Tensor& parameter : one.parameters(/*recurse=*/false)) {
      const bool is_convolution = parameter.dim() > 2;
      if (parameter.dim() < 2 || (is_convolution && !recipe.takes_convolutions)) {
        layer.others.push_back(parameter);
        continue;
      }
      layer.weights.push_back(parameter);
      layer.is_linear &= !is_convolution;
    }
    if (!layer.weights.empty()) layers.push_back(std::move(layer));
  };
  add("", module);  // which may lie on a stack, where it has no pointer to itself
  for (const auto& item : module.named_modules("", /*include_self=*/false))
    add(item.key(), *item.value());
  return layers;
}

OpPolicy OpPolicy::of_recipe(std::string_view name, const torch::nn::Module& network) {
  const quantization::Recipe& recipe = quantization::parse_recipe(name);
  std::vector<RecipeLayer> layers = layers_of_recipe(recipe, network);
  const std::size_t all = layers.size();
  std::erase_if(layers, [](const RecipeLayer& layer) { return !layer.is_linear; });
  const auto share = static_cast<std::size_t>(
      std::ceil(recipe.last_layers_kept * static_cast<double>(layers.size())));
  const std::size_t kept = std::min(layers.size(), std::max<std::size_t>(share, 1));
  if (all == kept)
    refuse(
        {.where = "OpPolicy.of_recipe",
         .what = "the network has no layer to quantize besides the last",
         .seen = std::to_string(all) + " layers that the recipe is for",
         .accepted = recipe.takes_convolutions ? "linear layers and convolutions" : "linear layers",
         .advice = "name the part in a policy: part NAME " + std::string(name)});
  OpPolicy policy;
  policy.set_part("*", name);
  for (std::size_t i = layers.size() - kept; i < layers.size(); ++i)
    policy.set_part(layers[i].name.empty() ? "*" : layers[i].name,
                    name_of(OpCategory::lower_precision));
  return policy;
}

}  // namespace demi
