#include "demi/autocast/apply.h"

#include <torch/nn/module.h>

#include <limits>
#include <unordered_map>

#include "demi/autocast/parts.h"
#include "demi/autocast/recipe_layers.h"
#include "demi/autocast/to_precision.h"
#include "demi/core/error.h"
#include "demi/core/nearest.h"

namespace demi {

void apply(const Policy& policy, torch::nn::Module& module) {
  to_precision(module, policy.variable_dtype(), /*keep_normalisation_fp32=*/false);
  for (const auto& parameter : module.parameters()) mark_part(parameter, policy.compute_dtype());
  forget_dead_parts();
}

namespace {

torch::nn::Module& part_of(const torch::nn::Module& module, std::string_view part) {
  std::vector<std::string> known;
  for (const auto& item : module.named_modules("", /*include_self=*/false)) {
    if (item.key() == part) return *item.value();
    known.push_back(item.key());
  }
  refuse({.where = "autocast.apply",
          .what = "the model has no part of that name",
          .seen = part,
          .advice = did_you_mean(part, known)});
}

}  // namespace

void apply(const Policy& policy, torch::nn::Module& module, std::string_view part) {
  demi::apply(policy, part_of(module, part));
}

namespace {

// The part that a rule names, and the weights that its recipe is for.
struct PartOfRule {
  const PartRule* rule;
  torch::nn::Module* part;
  const quantization::Recipe* recipe;  // null: none
  std::vector<at::Tensor> weights;
  std::vector<at::Tensor> others;  // of the same layers
};

PartOfRule found(const PartRule& rule, torch::nn::Module& module) {
  PartOfRule result{.rule = &rule,
                    .part = rule.part == "*" ? &module : &part_of(module, rule.part),
                    .recipe = quantization::find_recipe(rule.treatment),
                    .weights = {},
                    .others = {}};
  if (!result.recipe) return result;
  for (const RecipeLayer& layer : layers_of_recipe(*result.recipe, *result.part)) {
    result.weights.insert(result.weights.end(), layer.weights.begin(), layer.weights.end());
    result.others.insert(result.others.end(), layer.others.begin(), layer.others.end());
  }
  if (result.weights.empty())
    refuse({.where = "autocast.apply",
            .what = "the part has no layer that the recipe is for",
            .seen = "part " + rule.part + " " + rule.treatment,
            .accepted = result.recipe->takes_convolutions ? "linear layers and convolutions"
                                                          : "linear layers",
            .advice = "name another part, or leave the line out"});
  return result;
}

}  // namespace

void apply(const OpPolicy& policy, torch::nn::Module& module, std::uint64_t seed) {
  std::vector<PartOfRule> parts;
  for (const PartRule& rule : policy.parts()) parts.push_back(found(rule, module));
  std::unordered_map<const c10::TensorImpl*, std::uint32_t> numbers;
  for (const at::Tensor& parameter : module.parameters())
    numbers.emplace(parameter.unsafeGetTensorImpl(), static_cast<std::uint32_t>(numbers.size()));
  const auto run = std::make_shared<quantization::RecipeRun>();
  run->seed = seed;
  for (const PartOfRule& one : parts) {
    if (one.recipe) {
      // A bias that is FP32 by an earlier rule would decide for its layer.
      for (const at::Tensor& other : one.others) unmark_part(other);
      constexpr auto kNever = std::numeric_limits<std::int64_t>::max();
      for (const at::Tensor& weight : one.weights)
        mark_part(weight, PartMark{.quantized = std::make_shared<quantization::QuantizedWeight>(
                                       *one.recipe, numbers.at(weight.unsafeGetTensorImpl()),
                                       one.rule->until.value_or(kNever), run)});
    } else if (one.rule->treatment == name_of(OpCategory::fp32)) {
      demi::apply(Policy("float32"), *one.part);
    } else {
      unapply(*one.part);
    }
  }
  forget_dead_parts();
}

void set_step(const torch::nn::Module& module, std::int64_t step,
              std::optional<std::int64_t> batch) {
  if (quantized_parameters.load(std::memory_order_relaxed) == 0) return;
  for (const at::Tensor& parameter : module.parameters()) {
    const auto mark = mark_of_part(parameter);
    if (!mark || !mark->quantized) continue;
    mark->quantized->run->step = step;
    mark->quantized->run->batch = static_cast<std::uint32_t>(batch.value_or(step));
  }
}

namespace {

// Whether the last block of a row or column of the weight is not full.
bool is_padded(const quantization::Recipe& recipe, const at::Tensor& weight) {
  for (const quantization::Operand* one : {&recipe.weight, &recipe.weight_for_input}) {
    const int block = one->is_quantized ? kernels::block_of(one->scaling) : 0;
    if (block != 0 && (weight.size(0) % block != 0 || weight.size(1) % block != 0)) return true;
  }
  return false;
}

}  // namespace

std::vector<QuantizedLayer> quantized_layers(const torch::nn::Module& module) {
  std::vector<QuantizedLayer> layers;
  if (quantized_parameters.load(std::memory_order_relaxed) == 0) return layers;
  constexpr auto kNever = std::numeric_limits<std::int64_t>::max();
  for (const auto& item : module.named_parameters()) {
    const auto mark = mark_of_part(item.value());
    if (!mark || !mark->quantized) continue;
    const auto& how = *mark->quantized;
    layers.push_back({.weight = item.key(),
                      .recipe = std::string(how.recipe->name),
                      .until = how.until == kNever ? std::nullopt : std::optional(how.until),
                      .is_padded = is_padded(*how.recipe, item.value()),
                      .was_used = how.was_multiplied.load(std::memory_order_relaxed)});
  }
  return layers;
}

void unapply(torch::nn::Module& module) {
  for (const auto& parameter : module.parameters()) unmark_part(parameter);
  forget_dead_parts();
}

}  // namespace demi
