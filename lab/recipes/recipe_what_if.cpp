#include "lab/recipes/recipe_what_if.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>

#include "demi/train/trainer.h"
#include "lab/report/format.h"
#include "lab/settings/config.h"

namespace demi::recipes {
namespace {

using monitor::LayerInRecipe;
using monitor::RecipeWhatIfResult;
using quantization::Product;

constexpr std::size_t kMostLayers = 20;
constexpr int64_t kTriedBatches = 20;  // at most

std::string number_text(double value) { return report::format_number(value, 3); }

// Of the product that loses most by it.
std::string greatest_share(const LayerInRecipe& layer, int64_t monitor::OperandLoss::*part) {
  double most = 0;
  for (const monitor::ProductLoss& product : layer.products)
    if (product.operands.elements > 0)
      most = std::max(most, static_cast<double>(product.operands.*part) /
                                static_cast<double>(product.operands.elements));
  return most == 0 ? "0" : report::format_share(most);
}

std::string product_text(const LayerInRecipe& layer, Product product) {
  const monitor::ProductLoss& loss = layer.products[static_cast<std::size_t>(product)];
  if (!layer.quantized) return "";
  return fmt::format("{} ({})", number_text(loss.error), report::format_fixed(loss.cosine, 4));
}

std::vector<LayerInRecipe> by_error(std::vector<LayerInRecipe> layers) {
  std::ranges::stable_sort(layers, std::greater(), &LayerInRecipe::error);
  return layers;
}

bool is_left_out(const RecipeWhatIfResult& result, const std::string& layer) {
  return std::ranges::find(result.left_out, layer) != result.left_out.end();
}

std::string verdict_text(const RecipeWhatIfResult& result) {
  const int64_t harmed = result.harmed();
  if (harmed == 0)
    return fmt::format("No layer is harmed: {} can have the whole network.", result.recipe);
  return fmt::format(
      "{} of {} layers {} harmed: the relative error of their weights' gradient, against FP32, is "
      "not below {}.",
      harmed, result.layers.size(), harmed == 1 ? "is" : "are", number_text(result.threshold));
}

// What to do about harmed layers.
void add_advice(const RunResult& run, std::vector<std::string>& notes) {
  const RecipeWhatIfResult& result = *run.recipe_what_if;
  if (result.none_fits) {
    notes.push_back(
        fmt::format("No layer can have {}: with any of them in it, one is harmed. Train in bf16.",
                    result.recipe));
    return;
  }
  const auto in_bf16 =
      std::ranges::count(result.layers, monitor::HarmCause::lower_precision, &LayerInRecipe::cause);
  if (in_bf16 > 0)
    notes.push_back(fmt::format("bf16 alone harms {} of them as much: no policy for {} helps.",
                                in_bf16, result.recipe));
  if (result.left_out.empty()) return;
  double greatest = 0;
  for (const LayerInRecipe& layer : result.layers)
    greatest = std::max(greatest, layer.policy_error);
  notes.push_back(fmt::format("Policy file: {}", run.what_if_policy.string()));
  notes.push_back(fmt::format(
      "It leaves {} of {} layers in bf16. Tried on {} batch{}, the greatest error is {}.",
      result.left_out.size(), std::ranges::count(result.layers, true, &LayerInRecipe::quantized),
      result.policy_batches, result.policy_batches == 1 ? "" : "es", number_text(greatest)));
}

std::vector<std::string> notes_on(const RunResult& run) {
  const RecipeWhatIfResult& result = *run.recipe_what_if;
  std::vector<std::string> notes;
  if (!result.refused.empty())
    notes.push_back(
        fmt::format("The network does not run in {}: {}", result.recipe, result.refused));
  if (result.diverged)
    notes.push_back(fmt::format(
        "The run is not finite itself in step {}, whatever the recipe: later steps were not "
        "looked at. --detect-anomaly says where Inf or NaN begin.",
        *result.diverged));
  if (result.batches > 0) {
    notes.push_back(verdict_text(result));
    add_advice(run, notes);
  }
  if (result.against_region)
    notes.push_back(
        "The network draws random numbers (dropout), of which bf16 has others than FP32: gradients "
        "are compared with those in bf16.");
  notes.push_back(fmt::format(
      "Of {} batches, steps {} to {}; it took {:.1f} s of the run's {:.1f} s.", result.batches,
      result.first_step, result.last_step, result.seconds, run.seconds));
  return notes;
}

}  // namespace

monitor::RecipeWhatIfOptions recipe_what_if_options(const settings::Resolved& run,
                                                    int64_t batches) {
  const settings::Config& config = run.config;
  monitor::RecipeWhatIfOptions options{.recipe = config.what_if,
                                       .policy = run.op_policy.value_or(OpPolicy()),
                                       .seed = static_cast<std::uint64_t>(config.seed)};
  for (const std::string& part : run.fp32_parts) options.policy.keep_part_in_fp32(part);
  int64_t steps = config.epochs * train::steps_of(batches, settings::batches_of_step(config));
  if (const int64_t last = settings::last_step(config); last > 0) steps = std::min(steps, last);
  options.every = std::max<int64_t>(1, (steps + kTriedBatches - 1) / kTriedBatches);
  return options;
}

std::vector<report::MetricFields> recipe_what_if_lines(const std::string& run,
                                                       const RecipeWhatIfResult& result) {
  std::vector<report::MetricFields> lines;
  for (const LayerInRecipe& layer : result.layers) {
    lines.push_back({{"run", run},
                     {"epoch", int64_t{0}},
                     {"step", result.last_step},
                     {"what_if", result.recipe},
                     {"layer", layer.layer},
                     {"quantized", layer.quantized},
                     {"harmed", layer.harmed},
                     {"error", layer.error},
                     {"greatest_error", layer.greatest_error},
                     {"policy_error", layer.policy_error},
                     {"left_out", is_left_out(result, layer.layer)},
                     {"cause", std::string(name_of(layer.cause))},
                     {"from", layer.from}});
    if (!layer.quantized) continue;
    for (const Product product :
         {Product::output, Product::input_gradient, Product::weight_gradient}) {
      const monitor::ProductLoss& loss = layer.products[static_cast<std::size_t>(product)];
      std::string name(monitor::name_of(product));
      std::ranges::replace(name, ' ', '_');
      lines.back().emplace_back(name + "_error", loss.error);
      lines.back().emplace_back(name + "_cosine", loss.cosine);
      lines.back().emplace_back(name + "_elements", loss.operands.elements);
      lines.back().emplace_back(name + "_saturated", loss.operands.saturated);
      lines.back().emplace_back(name + "_underflowed", loss.operands.underflowed);
    }
  }
  return lines;
}

report::Table recipe_what_if_table(const RunResult& run) {
  const RecipeWhatIfResult& result = *run.recipe_what_if;
  report::Table table{.title =
                          fmt::format("{}: what if it were {}", run.spec.label, result.recipe)};
  table.columns = {{.name = "layer", .align = report::Align::kLeft},
                   {.name = "weights' gradient: error"},
                   {.name = "with the policy"},
                   {.name = "output (cosine)"},
                   {.name = "input gradient"},
                   {.name = "weight gradient"},
                   {.name = "becomes 0"},
                   {.name = "saturates"},
                   {.name = "harm", .align = report::Align::kLeft},
                   {.name = "in the policy", .align = report::Align::kLeft}};
  for (const LayerInRecipe& layer : by_error(result.layers)) {
    if (table.rows.size() == kMostLayers) break;
    const bool is_out = is_left_out(result, layer.layer);
    table.rows.push_back({layer.layer, number_text(layer.error),
                          result.policy_batches > 0 ? number_text(layer.policy_error) : "",
                          product_text(layer, Product::output),
                          product_text(layer, Product::input_gradient),
                          product_text(layer, Product::weight_gradient),
                          greatest_share(layer, &monitor::OperandLoss::underflowed),
                          greatest_share(layer, &monitor::OperandLoss::saturated),
                          cause_text(layer), !layer.quantized || is_out ? "bf16" : result.recipe});
  }
  table.notes = notes_on(run);
  if (result.layers.size() > kMostLayers)
    table.notes.push_back(fmt::format("{} more layers: result.json and --json name them.",
                                      result.layers.size() - kMostLayers));
  table.notes.push_back(
      "Errors are |recipe - exact| / |exact|, the mean over the batches: of a layer's weights' "
      "gradient with the whole network in the recipe, and of each of its products by itself.");
  return table;
}

bool needs_policy(const RecipeWhatIfResult& result) {
  return !result.left_out.empty() && !result.none_fits;
}

}  // namespace demi::recipes
