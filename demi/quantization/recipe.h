#pragma once

#include <atomic>
#include <cstdint>
#include <limits>
#include <memory>
#include <span>
#include <string_view>
#include <utility>

#include "demi/core/export.h"
#include "demi/kernels/quantized.h"

namespace demi::quantization {

/// How one operand of a product is quantized. Blocks lie along the dimension that the product sums
/// over.
struct Operand {
  kernels::NarrowFormat format = kernels::NarrowFormat::e4m3;  // of the codes
  kernels::Scaling scaling = kernels::Scaling::tensor;         // of the scales
  bool by_chance = false;    // rounded up with the probability of the fraction; else to nearest
  bool hadamard = false;     // multiplied by an orthogonal matrix of 16 first, as the other operand
  bool is_quantized = true;  // false: the operand is read as it is, in the region's 16 bits
};

/// The formats in which a linear layer's three products read their operands. x (tokens, in), weight
/// (out, in), y = x weight^T, dy (tokens, out). Sums are FP32. Bias, outputs and everything between
/// layers are as without a recipe.
struct Recipe {
  std::string_view name;                          // "fp8:rowwise"
  std::string_view summary;                       // one line
  Operand input, weight;                          // y: sums over in
  Operand gradient, weight_for_input;             // dx = dy weight: sums over out
  Operand gradient_for_weight, input_for_weight;  // dweight = dy^T x: sums over tokens
  bool takes_convolutions = false;                // else convolutions run in the region's dtype
  /// The share of a network's linear layers, from the last one on, that a policy for the whole
  /// network leaves in the region's dtype (OpPolicy::of_recipe), besides the last one itself.
  double last_layers_kept = 0;
};

/// All recipes:
///
/// fp8: a scale for each tensor, of its present amax; E4M3, gradients E5M2, as torchao's
/// tensorwise. fp8:rowwise: E4M3, a scale that is a power of two for each row of each operand, as
/// torchao's. fp8:blocks: E4M3, an FP32 scale for 1 x 128 of inputs and gradients, 128 x 128 of
/// weights (DeepSeek-V3, arXiv 2412.19437, section 3.3). mxfp8: E4M3, an E8M0 scale for 32
/// neighbours, rounded up, as NVIDIA's recipe (arXiv 2506.08027). mxfp8:wgrad-bf16: the weight's
/// gradient is computed of 16 bits. nvfp4: E2M1, blocks of 16, of 16 x 16 in weights, gradients by
/// chance, a Hadamard transform of 16 before the weight's gradient (arXiv 2509.25149).
DEMI_API std::span<const Recipe> recipes();

/// The recipe of that name; null if there is none.
DEMI_API const Recipe* find_recipe(std::string_view name);
/// Throws UsageError with the nearest known name if there is none.
DEMI_API const Recipe& parse_recipe(std::string_view name);

class ProductObserver;

/// What the layers share to which a policy was applied: which step their run is at.
struct RecipeRun {
  std::uint64_t seed = 0;                // of roundings by chance
  std::atomic<std::int64_t> step = -1;   // as demi::set_step() says; -1: it was not called
  std::atomic<std::uint32_t> batch = 0;  // likewise
  std::atomic<ProductObserver*> observer = nullptr;  // hears of each product; null: nobody does
};

/// A weight with a recipe.
struct QuantizedWeight {
  const Recipe* recipe;  // never null
  std::uint32_t number;  // which parameter of the network, for roundings by chance
  std::int64_t until = std::numeric_limits<std::int64_t>::max();  // first step without the recipe
  std::shared_ptr<RecipeRun> run;                                 // shared with the other weights
  mutable std::atomic<std::uint32_t> backward_passes = 0;         // of this weight's layer
  mutable std::atomic<bool> was_multiplied = false;  // by the recipe, in a forward pass

  QuantizedWeight(const Recipe& of, std::uint32_t place, std::int64_t end,
                  std::shared_ptr<RecipeRun> shared)
      : recipe(&of), number(place), until(end), run(std::move(shared)) {}

  /// Whether the run's step is before `until`.
  bool is_in_force() const { return run->step.load(std::memory_order_relaxed) < until; }
};

}  // namespace demi::quantization
