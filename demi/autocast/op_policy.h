#pragma once

#include <c10/core/DeviceType.h>

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "demi/core/export.h"

namespace torch::nn {
class Module;
}

namespace demi {

/// The treatment, by an autocast region, of the floating point arguments of an op. FP64 arguments
/// are never cast.
enum class OpCategory : std::uint8_t {
  lower_precision,  // cast to the region's dtype
  fp32,             // cast to FP32
  /// Arguments as they are; the op sums in FP32 and returns FP32, unless the call names a dtype.
  fp32_output,
  promote,    // cast to the widest dtype among them; FP16 with BF16 gives FP32
  banned,     // refused, with advice
  unchanged,  // run as given
};

/// The name as it is printed and read from files: "lower_precision".
DEMI_API std::string_view name_of(OpCategory category);

/// The category of that name. Throws UsageError with the nearest known name.
DEMI_API OpCategory parse_op_category(std::string_view name);

/// One line of the op table. `op` is "softmax.int" or "namespace::op.overload"; the default
/// namespace is aten.
struct OpRule {
  std::string op;
  OpCategory category;  // what a region does with its arguments
  std::string reason;   // why; a file's comment
};

/// One line about a part of a model: "part encoder.norm fp32".
struct PartRule {
  std::string part;  // its name in the model, "encoder.norm"; "*": the model itself
  /// fp32; lower_precision: as a region has it, for a part of one that is named before; or a
  /// recipe, whose layers multiply numbers of 8 or 4 bits (quantization::recipes).
  std::string treatment;
  /// The first step without the recipe ("until 8200"), counted from 0. Absent: none.
  std::optional<std::int64_t> until = {};
};

/// The dtypes that ops run in: a list of changes to LibTorch's own lists for the device. A value
/// type.
///
///     demi::OpPolicy policy;
///     policy.set("softmax", demi::OpCategory::fp32);
///     demi::Autocast region(torch::kCPU, {.policy = policy});
///
/// An op that is in no list gets its autocast kernel when a policy that names it is first used. Use
/// such a policy once before threads run the op.
class DEMI_API OpPolicy {
 public:
  OpPolicy() = default;

  /// "default": LibTorch's lists. "fp32_reductions": ops that LibTorch's CUDA lists run in FP32 and
  /// its CPU lists do not name (softmax, layer_norm, cumsum, norms, sums, ...) run in FP32 on every
  /// device. "fp32_softmax": softmax and log_softmax run in FP32, as in Keras's mixed policies.
  /// Throws UsageError with the nearest known name.
  static OpPolicy named(std::string_view name);
  /// The names that named() knows.
  static std::vector<std::string> names();

  /// The policy by which a whole network trains in a recipe: `part * RECIPE`, and lower_precision
  /// for its last linear layer, and for as many before that as the recipe leaves out (15 % in
  /// nvfp4, arXiv 2509.25149). Throws UsageError with the nearest known name for an unknown recipe,
  /// and for a network in which it has no layer.
  static OpPolicy of_recipe(std::string_view recipe, const torch::nn::Module& network);

  /// Reads a file with a line for each op: `softmax fp32` or `softmax.int = fp32`. `softmax.` is
  /// the overload without a name alone. A line `policy NAME` starts from a named policy. A line
  /// `part NAME fp32`, `part NAME mxfp8` or `part NAME nvfp4 until 8200` is a PartRule. `#` starts
  /// a comment, which is the reason of its line's rule. Throws DataError if the file cannot be
  /// read, and UsageError with the line's number if a line is wrong.
  static OpPolicy from_file(const std::filesystem::path& path);
  /// Reads the text of such a file. `source` is its name in messages, before the line's number.
  static OpPolicy from_text(const std::string& text, const std::string& source = "policy");

  /// The text of a file that from_file() reads back, with the reasons as comments.
  std::string to_string() const;
  /// Writes it, or leaves the file as it was. Throws TrainingError if it cannot be written.
  void to_file(const std::filesystem::path& path) const;

  /// Moves an op to a category; all its overloads if none is named. Throws UsageError with the
  /// nearest known name for an op that LibTorch does not have, and for an op that writes to its
  /// arguments.
  OpPolicy& set(std::string_view op, OpCategory category,
                std::string_view reason = "set by the user");

  /// Says how a part of a model computes (PartRule). Of two rules for one part the last counts, and
  /// so it does of rules for a part and for one within it. A region does not know the model:
  /// demi::apply(policy, module) applies the rules. Throws UsageError for an unknown treatment, and
  /// for `until` without a recipe or below 1.
  OpPolicy& set_part(std::string_view part, std::string_view treatment,
                     std::optional<std::int64_t> until = std::nullopt);
  /// The rules, in the order in which they are applied.
  const std::vector<PartRule>& parts() const { return parts_; }

  /// A part of a model ("encoder.norm") that computes in FP32: set_part(part, "fp32").
  OpPolicy& keep_part_in_fp32(std::string_view part);
  /// The names of those parts, each once.
  std::vector<std::string> fp32_parts() const;

  /// The changes to LibTorch's lists, one rule for each overload. Of two rules for one op the last
  /// counts.
  const std::vector<OpRule>& changes() const { return changes_; }

  /// The whole table for this device, sorted by op.
  std::vector<OpRule> rules(c10::DeviceType device) const;

 private:
  std::vector<OpRule> changes_;
  std::vector<PartRule> parts_;
};

/// The policy of regions that name none, and of at::autocast's own setters. A change takes effect
/// at the next op, in every thread. Any thread.
DEMI_API OpPolicy global_op_policy();
DEMI_API void set_global_op_policy(const OpPolicy& policy);

}  // namespace demi
