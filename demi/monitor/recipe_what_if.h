#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "demi/autocast/op_policy.h"
#include "demi/core/export.h"
#include "demi/loop/observer.h"
#include "demi/quantization/layers.h"

namespace demi::monitor {

/// The run in a recipe that RecipeWhatIf asks about.
struct RecipeWhatIfOptions {
  std::string recipe = "mxfp8";  // of quantization::recipes()
  /// The dtypes that ops run in there, and parts that compute in another way than the recipe has
  /// them.
  OpPolicy policy = {};
  std::int64_t every = 50;  // the steps whose first batch is tried: every, 2 every, ...
  /// A layer is harmed if the relative error of its weights' gradients is above this. Absent: 0.3
  /// if the recipe has numbers of 4 bits, else 0.1.
  std::optional<double> threshold = {};
  std::uint64_t seed = 0;  // of roundings by chance
};

/// The effect of quantization on the numbers that a product read, both operands together.
struct OperandLoss {
  std::int64_t elements = 0;     // numbers that were quantized one by one
  std::int64_t saturated = 0;    // that lost more of their magnitude than a rounding takes
  std::int64_t underflowed = 0;  // not 0 before, 0 after
  /// The squares of what they lost over those of the numbers, the mean over the places that the
  /// product sums over: a large feature does not hide what the small ones lose.
  double lost = 0;
  double of_saturated = 0, of_underflowed = 0;  // the parts of `lost` that these have
};

/// The error of one of a layer's products by itself: against the exact product of the same
/// operands.
struct ProductLoss {
  double error = 0;      // |result - exact| / |exact|, L2 norms, the mean over the batches
  double cosine = 1;     // of the angle between the two, likewise
  OperandLoss operands;  // what its operands lost
};

/// Where the error of a harmed layer comes from.
enum class HarmCause : std::uint8_t {
  none,            // the layer is not harmed
  rounding,        // a product, whose operands have too few digits
  saturation,      // a product, whose operands exceed the greatest number
  underflow,       // a product, of whose operands too many become 0
  other_layers,    // products of several layers, of which none has half of the error's square
  lower_precision  // the region's 16 bits, without any recipe
};
/// "rounding", "other layers".
DEMI_API std::string_view name_of(HarmCause cause);
/// "output", "input gradient", "weight gradient".
DEMI_API std::string_view name_of(quantization::Product product);

/// The effect of a recipe on one layer. Errors of gradients are those of the layer's weights
/// against FP32 on the same batch, from the same weights: |recipe - exact| / |exact|, L2 norms, the
/// mean over the batches.
struct LayerInRecipe {
  std::string layer;          // a module with weights that a recipe is for: "layers.0"
  bool quantized = false;     // else the recipe leaves it in the region's dtype
  double error = 0;           // of its weights' gradients, the network in the recipe
  double greatest_error = 0;  // of a batch
  double policy_error = 0;    // likewise, the network in the recipe with RecipeWhatIfResult::policy
  bool harmed =
      false;  // error, or two standard errors of that mean above it, is above the threshold
  HarmCause cause = HarmCause::none;   // why it is harmed
  std::string from;                    // the layer whose product is the cause; "": none
  quantization::Product product = {};  // which of its products
  /// Of output, input gradient and weight gradient; 0 where the layer has none.
  std::array<ProductLoss, 3> products = {};
};
/// "underflow of its weight gradient", "rounding of its output in layers.0", "of several layers
/// together", "bf16 alone"; "" for a layer that is not harmed.
DEMI_API std::string cause_text(const LayerInRecipe& layer);

/// The findings of RecipeWhatIf, and its proposal.
struct RecipeWhatIfResult {
  std::string recipe;      // that was tried
  double threshold = 0.1;  // of an error, above which a layer is harmed
  /// Number of batches that were examined, and their first and last step.
  std::int64_t batches = 0, first_step = 0, last_step = 0;
  double seconds = 0;                 // that it took
  std::vector<LayerInRecipe> layers;  // in the network's order
  /// The recipe for the network, and lower_precision for the layers of `left_out`.
  OpPolicy policy;
  /// The layers that leave the recipe, besides those that it leaves out itself, so that none is
  /// harmed; at fault by their own products first.
  std::vector<std::string> left_out;
  std::int64_t policy_batches = 0;  // on which the network with this policy was tried
  /// No layer can have the recipe: the network is to train in the region's dtype.
  bool none_fits = false;
  /// The batch draws random numbers, such as dropout's, of which two dtypes draw different ones:
  /// gradients are compared with those of a region without recipe.
  bool against_region = false;
  /// The message of what the layers throw in the recipe; "": nothing. Then no batch is examined.
  std::string refused;
  /// The step from which on loss or gradients of the FP32 run itself are not finite.
  std::optional<std::int64_t> diverged;

  /// Number of harmed layers.
  DEMI_API std::int64_t harmed() const;
  /// A file for OpPolicy::from_file: `policy`, with the reason of each layer of left_out as a
  /// comment.
  DEMI_API std::string policy_text() const;
};

/// Asks in an FP32 run which layers a recipe would harm, and which have to leave it:
///
///     const auto what_if = std::make_shared<demi::monitor::RecipeWhatIf>(
///         demi::monitor::RecipeWhatIfOptions{.recipe = "mxfp8", .every = 50});
///     trainer.add(what_if);
///     trainer.fit(loader);
///     std::ofstream("op_policy.txt") << what_if->result().policy_text();
///
/// The first batch of a step in `every` is repeated in FP32 and in a region of bf16 in which the
/// network has the recipe (OpPolicy::of_recipe), from the same weights, buffers and random numbers.
/// Compared are the gradients of the layers' weights, and each quantized product with the exact one
/// of its operands. If a layer is harmed, the batch is repeated with the recipe in one layer alone,
/// for each of them, which shows how much each harms the others; then without the layers that harm
/// most, more and more of them, until none is harmed.
///
/// The run continues with the same bits as without it. Other steps cost nothing. A step that is
/// looked at waits for the device, and takes the time of five to ten; one in which the policy
/// changes, that of as many as there are layers more.
class DEMI_API RecipeWhatIf : public loop::StepObserver {
 public:
  /// Throws UsageError with the nearest known name for an unknown recipe, for `every` below 1, and
  /// for a threshold that is not positive.
  explicit RecipeWhatIf(RecipeWhatIfOptions options = {});
  ~RecipeWhatIf() override;

  bool needs_step(std::int64_t step) override;
  /// Throws UsageError if the run is not FP32, and for a network in which the recipe has no layer.
  void before_forward(const loop::StepView& view) override;
  void after_backward(const loop::StepView& view) override;

  /// The result over the batches so far.
  RecipeWhatIfResult result() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace demi::monitor
