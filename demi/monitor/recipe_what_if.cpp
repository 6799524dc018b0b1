#include "demi/monitor/recipe_what_if.h"

#include <fmt/format.h>
#include <torch/types.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <numeric>
#include <set>
#include <unordered_map>
#include <utility>

#include "demi/autocast/recipe_layers.h"
#include "demi/core/error.h"
#include "demi/monitor/harm_cause.h"
#include "demi/monitor/product_losses.h"
#include "demi/monitor/recipe_trial.h"

namespace demi::monitor {
namespace {

using Clock = std::chrono::steady_clock;
using quantization::Product;

double default_threshold(const quantization::Recipe& recipe) {
  const auto has_4_bits = [](const quantization::Operand& operand) {
    return operand.is_quantized && operand.format == kernels::NarrowFormat::e2m1;
  };
  for (const auto& operand : {recipe.input, recipe.weight, recipe.gradient, recipe.weight_for_input,
                              recipe.gradient_for_weight, recipe.input_for_weight})
    if (has_4_bits(operand)) return 0.3;
  return 0.1;
}

void check(const RecipeWhatIfOptions& options) {
  require(options.every >= 1, {.where = "monitor.RecipeWhatIf",
                               .what = "it looks at a step in so many",
                               .seen = std::to_string(options.every),
                               .accepted = "1 or more"});
  require(!options.threshold || *options.threshold > 0,
          {.where = "monitor.RecipeWhatIf",
           .what = "the error above which a layer is harmed is not positive",
           .seen = fmt::format("{}", options.threshold.value_or(0)),
           .accepted = "such as 0.1"});
}

double mean_of(const std::vector<double>& values) {
  if (values.empty()) return 0;
  return std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size());
}

// Two standard errors of the mean above it: what has not been seen to be below a threshold counts
// as above it.
double upper_mean_of(const std::vector<double>& values) {
  const double mean = mean_of(values);
  if (values.size() < 2 || !std::isfinite(mean)) return mean;
  double squares = 0;
  for (const double value : values) squares += (value - mean) * (value - mean);
  const auto n = static_cast<double>(values.size());
  return mean + 2 * std::sqrt(squares / (n * (n - 1)));
}

OpPolicy without_recipes(const OpPolicy& policy) {
  OpPolicy result;
  for (const OpRule& rule : policy.changes()) result.set(rule.op, rule.category, rule.reason);
  for (const PartRule& rule : policy.parts())
    if (!quantization::find_recipe(rule.treatment))
      result.set_part(rule.part, rule.treatment, rule.until);
  return result;
}

// A layer's errors by batch, and its products' sums.
struct RecipeLayerRecord {
  std::string name;
  std::vector<std::uint32_t> numbers;  // of its weights, as apply() counts them
  std::vector<std::size_t> places;     // of its weights among the module's parameters
  bool quantized = false;
  std::vector<double> errors;         // in the recipe
  std::vector<double> policy_errors;  // with the present policy
  std::vector<double> region_errors;  // in the region without any recipe
  // The squared error that each layer gives it, if that one alone has the recipe; by layer.
  std::vector<double> shares;
  std::array<std::vector<double>, 3> product_errors, product_cosines;
  SumsOfWeight sums;
};

// |low - exact| / |exact| of the layer's weights together.
double error_of(const RecipeLayerRecord& layer, const RecipeTrial::Pass& exact,
                const RecipeTrial::Pass& low) {
  ProductSums sums;
  for (const std::size_t i : layer.places) {
    const at::Tensor &wanted = exact.gradients[i], &got = low.gradients[i];
    if (!wanted.defined()) continue;
    const at::Tensor a = wanted.to(c10::kDouble);
    sums.exact += a.square().sum().item<double>();
    sums.error += (got.defined() ? got.to(c10::kDouble) - a : a).square().sum().item<double>();
  }
  return sums.relative_error();
}

}  // namespace

struct RecipeWhatIf::Impl {
  explicit Impl(RecipeWhatIfOptions with)
      : options(std::move(with)),
        recipe(quantization::parse_recipe(options.recipe)),
        threshold(options.threshold.value_or(default_threshold(recipe))),
        region(without_recipes(options.policy)),
        trial(options.seed) {}

  const RecipeWhatIfOptions options;
  const quantization::Recipe& recipe;
  const double threshold;
  const OpPolicy region;  // options.policy without its recipes
  RecipeTrial trial;
  ProductLosses products;
  std::vector<RecipeLayerRecord> layers;
  OpPolicy whole;              // the recipe for the network, with options.policy
  std::vector<bool> left_out;  // by layer, of those that are quantized
  std::int64_t policy_batches = 0;
  RecipeWhatIfResult result;

  bool is_over() const { return result.diverged || !result.refused.empty(); }
  bool is_tried(std::int64_t step) const { return !is_over() && step % options.every == 0; }
  void begin(const loop::StepView& view);
  void look(const loop::StepView& view);
  void count_products();
  // What a policy can reach: the region's own error, with room for chance, if that is above.
  double limit_of(const RecipeLayerRecord& layer) const {
    return std::max(threshold, 1.25 * upper_mean_of(layer.region_errors));
  }
  bool is_harmed(const RecipeLayerRecord& layer) const {
    return upper_mean_of(layer.errors) > limit_of(layer);
  }
  bool is_harmed() const {
    return std::ranges::any_of(layers, [&](const auto& one) { return is_harmed(one); });
  }
  bool leaves_out_all() const;
  OpPolicy policy_without(const std::vector<bool>& out) const;
  void count_shares(const loop::StepView& view, const RecipeTrial::Pass& exact);
  std::vector<bool> to_leave_out(double share_of_limit) const;
  bool is_sound(const loop::StepView& view, const RecipeTrial::Pass& exact);
  void search(const loop::StepView& view, const RecipeTrial::Pass& exact);
  LayerInRecipe shown(const RecipeLayerRecord& layer) const;
};

void RecipeWhatIf::Impl::begin(const loop::StepView& view) {
  whole = OpPolicy::of_recipe(options.recipe, view.module);
  for (const PartRule& rule : options.policy.parts())
    whole.set_part(rule.part, rule.treatment, rule.until);
  for (const OpRule& rule : options.policy.changes())
    whole.set(rule.op, rule.category, rule.reason);
  // parameters() names a tensor as often as modules share it; its number counts it once.
  struct Place {
    std::uint32_t number;
    std::size_t place;
  };
  std::unordered_map<const c10::TensorImpl*, Place> places;
  const std::vector<at::Tensor> parameters = view.module.parameters();
  for (std::size_t i = 0; i < parameters.size(); ++i)
    places.emplace(parameters[i].unsafeGetTensorImpl(),
                   Place{static_cast<std::uint32_t>(places.size()), i});
  std::set<std::uint32_t> known;
  for (const RecipeLayer& layer : layers_of_recipe(recipe, view.module)) {
    RecipeLayerRecord record{.name = layer.name};
    bool is_new = false;
    for (const at::Tensor& weight : layer.weights) {
      const Place& found = places.at(weight.unsafeGetTensorImpl());
      is_new |= known.insert(found.number).second;
      record.numbers.push_back(found.number);
      record.places.push_back(found.place);
    }
    if (is_new) layers.push_back(std::move(record));  // else an earlier layer by another name
  }
}

// Sums of a batch become its errors, which are averaged.
void RecipeWhatIf::Impl::count_products() {
  const auto by_weight = products.take();
  for (RecipeLayerRecord& layer : layers) {
    SumsOfWeight of_batch;
    for (const std::uint32_t number : layer.numbers) {
      const auto found = by_weight.find(number);
      if (found == by_weight.end()) continue;
      layer.quantized = true;
      for (std::size_t i = 0; i < of_batch.size(); ++i) of_batch[i] += found->second[i];
    }
    if (!layer.quantized) continue;
    for (std::size_t i = 0; i < of_batch.size(); ++i) {
      layer.product_errors[i].push_back(of_batch[i].relative_error());
      layer.product_cosines[i].push_back(of_batch[i].cosine());
      layer.sums[i] += of_batch[i];
    }
  }
}

bool RecipeWhatIf::Impl::leaves_out_all() const {
  for (std::size_t i = 0; i < layers.size(); ++i)
    if (layers[i].quantized && !left_out[i]) return false;
  return true;
}

// Parents come before their children, which have a rule of their own if they differ.
OpPolicy RecipeWhatIf::Impl::policy_without(const std::vector<bool>& out) const {
  OpPolicy policy = whole;
  const auto is_within_one = [&](std::size_t i) {
    for (std::size_t j = 0; j < i; ++j)
      if (out[j] && (layers[j].name.empty() || layers[i].name.starts_with(layers[j].name + ".")))
        return true;
    return false;
  };
  for (std::size_t i = 0; i < layers.size(); ++i) {
    const std::string part = layers[i].name.empty() ? "*" : layers[i].name;
    if (out[i])
      policy.set_part(part, name_of(OpCategory::lower_precision));
    else if (layers[i].quantized && is_within_one(i))
      policy.set_part(part, recipe.name);
  }
  for (const PartRule& rule : options.policy.parts())
    if (rule.part != "*") policy.set_part(rule.part, rule.treatment, rule.until);
  return policy;
}

// Errors of several layers add up in squares, as independent roundings do.
void RecipeWhatIf::Impl::count_shares(const loop::StepView& view, const RecipeTrial::Pass& exact) {
  for (RecipeLayerRecord& layer : layers) layer.shares.assign(layers.size(), 0);
  for (std::size_t i = 0; i < layers.size(); ++i) {
    if (!layers[i].quantized) continue;
    std::vector<bool> others;
    for (const RecipeLayerRecord& layer : layers) others.push_back(layer.quantized);
    others[i] = false;
    const RecipeTrial::Pass pass = trial.in_region(view, policy_without(others), nullptr);
    for (RecipeLayerRecord& layer : layers) {
      const double error = error_of(layer, exact, pass), plain = layer.region_errors.back();
      layer.shares[i] = std::max(0.0, error * error - plain * plain);
    }
  }
}

// The layers without which no error is above that share of its limit, as far as the shares tell:
// one after the other, that first which has most of the errors above it.
std::vector<bool> RecipeWhatIf::Impl::to_leave_out(double share_of_limit) const {
  std::vector<bool> out(layers.size());
  while (true) {
    std::vector<double> score(layers.size());
    for (const RecipeLayerRecord& layer : layers) {
      const double limit = share_of_limit * limit_of(layer);
      double sum = layer.region_errors.back() * layer.region_errors.back();
      for (std::size_t i = 0; i < layers.size(); ++i) sum += out[i] ? 0 : layer.shares[i];
      if (sum <= limit * limit) continue;
      for (std::size_t i = 0; i < layers.size(); ++i)
        if (!out[i])
          score[i] += std::isfinite(sum) ? layer.shares[i] / sum : !std::isfinite(layer.shares[i]);
    }
    const auto worst = std::ranges::max_element(score);
    if (*worst <= 0) return out;
    out[static_cast<std::size_t>(worst - score.begin())] = true;
  }
}

// Tries the present policy.
bool RecipeWhatIf::Impl::is_sound(const loop::StepView& view, const RecipeTrial::Pass& exact) {
  const RecipeTrial::Pass pass = trial.in_region(view, policy_without(left_out), nullptr);
  ++policy_batches;
  bool sound = true;
  for (RecipeLayerRecord& layer : layers) {
    layer.policy_errors.push_back(error_of(layer, exact, pass));
    sound &= mean_of(layer.policy_errors) <= limit_of(layer);
  }
  return sound;
}

// Leaves out more layers until a trial shows no harmed one.
void RecipeWhatIf::Impl::search(const loop::StepView& view, const RecipeTrial::Pass& exact) {
  if (!is_harmed() || (policy_batches > 0 && is_sound(view, exact))) return;
  count_shares(view, exact);
  for (double share = 1;; share *= 0.8) {
    std::vector<bool> out = to_leave_out(share);
    for (std::size_t i = 0; i < layers.size(); ++i)
      out[i] = layers[i].quantized && (out[i] || share < 0.2);
    if (policy_batches > 0 && out == left_out) {
      if (leaves_out_all()) return;
      continue;
    }
    left_out = std::move(out);
    policy_batches = 0;
    for (RecipeLayerRecord& layer : layers) layer.policy_errors.clear();
    if (is_sound(view, exact) || leaves_out_all()) return;
  }
}

void RecipeWhatIf::Impl::look(const loop::StepView& view) {
  RecipeTrial::Pass exact = trial.in_fp32(view);
  if (!exact.is_finite()) {  // whatever the recipe: its numbers are no answer
    result.diverged = view.step;
    return;
  }
  const bool draws = trial.draws_numbers();
  RecipeTrial::Pass low;
  try {
    low = trial.in_region(view, whole, &products);
  } catch (const UsageError& error) {
    result.refused = error.what();
    return;
  }
  if (result.batches++ == 0) result.first_step = view.step;
  result.last_step = view.step;
  const RecipeTrial::Pass plain = trial.in_region(view, region, nullptr);
  result.against_region |= draws;
  if (draws) exact = plain;
  count_products();
  for (RecipeLayerRecord& layer : layers) {
    layer.errors.push_back(error_of(layer, exact, low));
    layer.region_errors.push_back(error_of(layer, exact, plain));
  }
  search(view, exact);
}

LayerInRecipe RecipeWhatIf::Impl::shown(const RecipeLayerRecord& layer) const {
  LayerInRecipe shown{.layer = layer.name.empty() ? "model" : layer.name,
                      .quantized = layer.quantized,
                      .error = mean_of(layer.errors),
                      .policy_error = mean_of(layer.policy_errors),
                      .harmed = upper_mean_of(layer.errors) > threshold};
  if (!layer.errors.empty()) shown.greatest_error = std::ranges::max(layer.errors);
  if (!layer.quantized) return shown;
  for (std::size_t i = 0; i < layer.sums.size(); ++i) {
    const ProductSums& sums = layer.sums[i];
    ProductLoss& product = shown.products[i];
    product.error = mean_of(layer.product_errors[i]);
    product.cosine = mean_of(layer.product_cosines[i]);
    product.operands = sums.operands;
    if (sums.operands_seen == 0) continue;
    for (double OperandLoss::*part :
         {&OperandLoss::lost, &OperandLoss::of_saturated, &OperandLoss::of_underflowed})
      product.operands.*part /= static_cast<double>(sums.operands_seen);
  }
  return shown;
}

RecipeWhatIf::RecipeWhatIf(RecipeWhatIfOptions options) {
  check(options);
  impl_ = std::make_unique<Impl>(std::move(options));
}
RecipeWhatIf::~RecipeWhatIf() = default;

bool RecipeWhatIf::needs_step(std::int64_t step) {
  return impl_->layers.empty() || impl_->is_tried(step);
}

void RecipeWhatIf::before_forward(const loop::StepView& view) {
  const Precision& precision = view.precision;
  if (precision.is_mixed() || precision.weights != c10::kFloat)
    refuse({.where = "monitor.RecipeWhatIf",
            .what = "the run is not FP32",
            .seen = precision.name,
            .accepted = "fp32, tf32",
            .advice = "let it look at an FP32 run, and use what it finds in this one"});
  Impl& impl = *impl_;
  if (impl.layers.empty()) impl.begin(view);
  if (!view.begins_step || !impl.is_tried(view.step)) return;
  const auto start = Clock::now();
  impl.trial.begin(view);
  impl.result.seconds += std::chrono::duration<double>(Clock::now() - start).count();
}

void RecipeWhatIf::after_backward(const loop::StepView& view) {
  Impl& impl = *impl_;
  if (!impl.trial.has_begun()) return;
  const auto start = Clock::now();
  impl.look(view);
  impl.trial.end();
  impl.result.seconds += std::chrono::duration<double>(Clock::now() - start).count();
}

RecipeWhatIfResult RecipeWhatIf::result() const {
  const Impl& impl = *impl_;
  RecipeWhatIfResult result = impl.result;
  result.recipe = impl.options.recipe;
  result.threshold = impl.threshold;
  std::vector<std::vector<double>> shares;
  std::vector<bool> harmed_in_region;
  for (const RecipeLayerRecord& layer : impl.layers) {
    shares.push_back(layer.shares);
    result.layers.push_back(impl.shown(layer));
    harmed_in_region.push_back(!impl.is_harmed(layer));
  }
  find_causes(result, shares, harmed_in_region);
  result.policy = impl.whole;
  if (!impl.is_harmed()) return result;
  for (std::size_t i = 0; i < impl.layers.size(); ++i)
    if (impl.left_out[i]) result.left_out.push_back(result.layers[i].layer);
  result.none_fits = impl.leaves_out_all();
  result.policy = result.none_fits ? impl.region : impl.policy_without(impl.left_out);
  result.policy_batches = impl.policy_batches;
  return result;
}

}  // namespace demi::monitor
