#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "demi/autocast/op_policy.h"
#include "demi/autocast/policy.h"
#include "demi/core/export.h"

namespace torch::nn {
class Module;
}

namespace demi {

/// Gives a module and its children a policy of their own. Parameters and buffers are stored in the
/// policy's variable dtype (normalisation, too, as in Keras). In any autocast region, ops that take
/// one of these parameters run in the policy's compute dtype; if that is a 16-bit one, ops that
/// must run in FP32 still do. Only ops with an autocast kernel are affected (`demi policy` lists
/// them). Ops without a parameter follow the region, because LibTorch's modules have no hook around
/// forward.
///
/// module.clone() keeps the policy, on another device too, and so does every copy of a parameter
/// that clone() or to() makes under NoGradGuard. A new module that is filled with values
/// (torch::load, copy_) has none, nor has a clone of one of LibTorch's modules that torch::load or
/// set_data() gives other memory before an op of a region has used it: apply it there again.
///
/// If applied twice, the last policy counts: apply to the whole model first, then to its parts.
/// Must not be called while another thread runs the module. Does not synchronise. Write
/// `demi::apply`: under `using namespace std`, or with arguments of std's types, the bare name also
/// means std::apply.
DEMI_API void apply(const Policy& policy, torch::nn::Module& module);

/// The form above for the module's part of that name ("encoder.layer1"). Throws UsageError with the
/// nearest known name if there is none.
DEMI_API void apply(const Policy& policy, torch::nn::Module& module, std::string_view part);

/// The parts of the model compute as the policy's rules for them say, in their order: in FP32, as
/// the form above does with float32; as the region has it; or by a recipe. A recipe is for the
/// weights of linear layers, of two dimensions, and those of convolutions if it takes them: in a
/// region linear, addmm, mm, matmul with such a weight, and conv, run as quantization::linear() and
/// convolution() do. Embeddings and recurrent layers are left as they are, and so is an op that a
/// policy runs in FP32. `seed`: of roundings by chance.
///
/// Throws UsageError as the form above, and for a recipe of a part without such a weight, before
/// anything is changed.
DEMI_API void apply(const OpPolicy& policy, torch::nn::Module& module, std::uint64_t seed = 0);

/// Says which step, counted from 0, the next forward passes of the module belong to: layers with a
/// recipe use it for `until` and, with the number of the batch, for roundings by chance. loop::Step
/// calls it. Without it a rule's `until` is never reached, and roundings depend on how many
/// backward passes a layer has made. `batch` absent: the step's number.
DEMI_API void set_step(const torch::nn::Module& module, std::int64_t step,
                       std::optional<std::int64_t> batch = std::nullopt);

/// A weight with a recipe, for reports.
struct QuantizedLayer {
  std::string weight;                      // its name in the module
  std::string recipe;                      // its name
  std::optional<std::int64_t> until = {};  // the first step without it
  /// Whether a dimension is no multiple of its blocks, which count as filled up with zeros: no
  /// result changes, but hardware may refuse such sizes.
  bool is_padded = false;
  /// Whether a layer has multiplied by it in a forward pass: weights of other ops have a recipe
  /// that does nothing.
  bool was_used = false;
};
/// The weights of a module that have a recipe, in the module's order.
DEMI_API std::vector<QuantizedLayer> quantized_layers(const torch::nn::Module& module);

/// The module follows its region again. Its stored dtypes do not change.
DEMI_API void unapply(torch::nn::Module& module);

}  // namespace demi
