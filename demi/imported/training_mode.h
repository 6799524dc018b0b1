#pragma once

#include <string>
#include <string_view>

#include "demi/imported/graph.h"

namespace demi::imported {

/// The network's mode when a graph was exported, by the flags of its dropout and normalisation.
/// unknown: there are no such flags. contradictory: some flags are on and some off, and none of
/// those that are on belongs to a module of PyTorch's, which follows its mode.
enum class ExportedMode { train, eval, unknown, contradictory };

ExportedMode exported_mode(const Program& program);

/// Interprets the flags of a graph that is the only one of its file and has to serve for both
/// modes.
class TrainingFlags {
 public:
  /// `rewrites` is false where the file has a graph for each mode: nothing is changed then.
  TrainingFlags(ExportedMode mode, bool rewrites) : mode_(mode), rewrites_(rewrites) {}

  bool rewrites() const {
    return rewrites_ && (mode_ == ExportedMode::train || mode_ == ExportedMode::eval);
  }
  ExportedMode mode() const { return mode_; }

  /// Whether the flag follows the network's mode. A flag that has the other mode's value at the
  /// export keeps it, as those of a frozen batch norm, and of one that is written to train in eval
  /// mode.
  bool follows(bool flag) const { return rewrites() && flag == (mode_ == ExportedMode::train); }

  /// Whether probabilities of dropout in attention, which has no flag, are 0 in eval.
  bool follows_probability() const { return rewrites() && mode_ == ExportedMode::train; }

 private:
  ExportedMode mode_;
  bool rewrites_;
};

/// The argument's value if it says whether the node trains, else null. Null for a normalisation
/// without running statistics, whose flag is on in both modes.
const bool* flag_of(const Node& node, const NamedArgument& input);

/// The argument's value if it is a probability of dropout of an operator without a flag, else null.
const double* probability_of(const Node& node, const NamedArgument& input);

/// The argument of an operator ("aten::dropout") that says whether it trains; "": it has none.
std::string_view training_flag(std::string_view op);

/// "torch.ops.aten.batch_norm.default" as "aten::batch_norm".
std::string operator_name(std::string_view target);

}  // namespace demi::imported
