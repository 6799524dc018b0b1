#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "demi/imported/graph.h"

namespace demi::imported {

/// In which mode of the network a graph was exported, as the flags of its dropout and normalisation
/// say.
enum class ExportedMode { train, eval, unknown };

ExportedMode exported_mode(const Graph& graph);

/// What the flags of a graph mean in a file of one graph, which has to serve for both modes.
class TrainingFlags {
 public:
  /// `rewrites` is false where the file has a graph for each mode: nothing is changed then.
  TrainingFlags(ExportedMode mode, bool rewrites) : mode_(mode), rewrites_(rewrites) {}

  bool rewrites() const { return rewrites_ && mode_ != ExportedMode::unknown; }
  ExportedMode mode() const { return mode_; }

  /// Whether the argument is a flag that follows the model's mode. One that was off in training
  /// stays off: a frozen BatchNorm.
  bool follows(const Node& node, const NamedArgument& input) const;

  /// Whether the argument is a probability of dropout that is 0 in eval.
  bool is_probability(const Node& node, const NamedArgument& input) const;

 private:
  ExportedMode mode_;
  bool rewrites_;
};

/// The argument of an operator ("aten::dropout") that says whether it trains; "": it has none.
std::string_view training_flag(std::string_view op);

/// "torch.ops.aten.batch_norm.default" as "aten::batch_norm".
std::string operator_name(std::string_view target);

}  // namespace demi::imported
