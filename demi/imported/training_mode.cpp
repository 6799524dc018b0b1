#include "demi/imported/training_mode.h"

#include <algorithm>
#include <set>

#include "demi/imported/tensor_names.h"

namespace demi::imported {
namespace {

struct Flag {
  std::string_view op, argument;
};

// Operators that compute something else in training, and the argument that switches them
// (native_functions.yaml).
constexpr Flag kFlags[] = {
    {"aten::dropout", "train"},
    {"aten::dropout_", "train"},
    {"aten::feature_dropout", "train"},
    {"aten::feature_dropout_", "train"},
    {"aten::alpha_dropout", "train"},
    {"aten::alpha_dropout_", "train"},
    {"aten::feature_alpha_dropout", "train"},
    {"aten::feature_alpha_dropout_", "train"},
    {"aten::native_dropout", "train"},
    {"aten::rrelu", "training"},
    {"aten::rrelu_", "training"},
    {"aten::rrelu_with_noise", "training"},
    {"aten::rrelu_with_noise_", "training"},
    {"aten::rrelu_with_noise_functional", "training"},
    {"aten::batch_norm", "training"},
    {"aten::native_batch_norm", "training"},
    {"aten::cudnn_batch_norm", "training"},
    {"aten::_native_batch_norm_legit", "training"},
    {"aten::_native_batch_norm_legit_functional", "training"},
    {"aten::instance_norm", "use_input_stats"},
    {"aten::lstm", "train"},
    {"aten::gru", "train"},
    {"aten::rnn_tanh", "train"},
    {"aten::rnn_relu", "train"},
};

const NamedArgument* argument_of(const Node& node, std::string_view name) {
  const auto found = std::ranges::find(node.inputs, name, &NamedArgument::name);
  return found == node.inputs.end() ? nullptr : &*found;
}

bool is_normalisation(std::string_view op) { return op.find("_norm") != std::string_view::npos; }

/// The votes of a graph's flags for a mode. Flags of PyTorch's modules and of batch norms that
/// count their batches follow the mode; any other may be a constant in the program.
class Votes {
 public:
  void look_at(const Graph& graph, const TensorNames& names) {
    for (const Node& node : graph.nodes) {
      const auto nested = find_subgraph(node);
      if (nested != node.inputs.end())
        look_at(*nested->argument.as<SubGraph>()->graph, names_within(node, names));
      note_count(node, names);
      for (const NamedArgument& input : node.inputs) {
        if (const bool* flag = flag_of(node, input)) add(node, names, *flag);
        if (const double* p = probability_of(node, input); p != nullptr && *p > 0)
          add(node, names, true);
      }
      if (operator_name(node.target) == "aten::_native_batch_norm_legit_no_training")
        add(node, names, false);
    }
  }

  ExportedMode mode() const {
    bool is_on = false, is_off = false, is_off_beside_norms = false, is_on_by_hand = false;
    for (const Vote& vote : votes_) {
      const bool follows = vote.is_of_pytorch || counting_.contains(vote.module);
      is_on |= vote.flag && follows;
      is_on_by_hand |= vote.flag && !follows;
      is_off |= !vote.flag;
      is_off_beside_norms |= !vote.flag && vote.is_of_pytorch && !vote.is_norm;
    }
    if (is_on) return ExportedMode::train;
    // Batch norms are frozen in training, dropouts of PyTorch's are not.
    if (is_off_beside_norms) return ExportedMode::eval;
    if (is_on_by_hand) return is_off ? ExportedMode::contradictory : ExportedMode::train;
    return is_off ? ExportedMode::eval : ExportedMode::unknown;
  }

 private:
  struct Vote {
    bool flag, is_of_pytorch, is_norm;
    std::string module;  // of its running mean
  };

  void add(const Node& node, const TensorNames& names, bool flag) {
    const NamedArgument* mean = argument_of(node, "running_mean");
    votes_.push_back({.flag = flag,
                      .is_of_pytorch = node.place.type.starts_with("torch.nn.modules."),
                      .is_norm = is_normalisation(operator_name(node.target)),
                      .module = mean == nullptr ? node.place.module
                                                : module_of(tensor_name(mean->argument, names))});
  }

  void note_count(const Node& node, const TensorNames& names) {
    const std::string op = operator_name(node.target);
    if ((op != "aten::add_" && op != "aten::add") || node.inputs.empty()) return;
    const std::string_view counted = tensor_name(node.inputs[0].argument, names);
    if (counted.ends_with("num_batches_tracked")) counting_.insert(module_of(counted));
  }

  std::vector<Vote> votes_;
  std::set<std::string> counting_;
};

}  // namespace

ExportedMode exported_mode(const Program& program) {
  Votes votes;
  votes.look_at(program.graph, tensor_names(program));
  return votes.mode();
}

const bool* flag_of(const Node& node, const NamedArgument& input) {
  const std::string op = operator_name(node.target);
  if (input.name.empty() || training_flag(op) != input.name) return nullptr;
  const NamedArgument* mean = argument_of(node, "running_mean");
  if (is_normalisation(op) && (mean == nullptr || mean->argument.is_none())) return nullptr;
  return input.argument.as<bool>();
}

const double* probability_of(const Node& node, const NamedArgument& input) {
  const bool is_attention = operator_name(node.target) == "aten::scaled_dot_product_attention";
  return is_attention && input.name == "dropout_p" ? input.argument.as<double>() : nullptr;
}

std::string_view training_flag(std::string_view op) {
  const auto* found = std::ranges::find(kFlags, op, &Flag::op);
  return found == std::end(kFlags) ? std::string_view() : found->argument;
}

std::string operator_name(std::string_view target) {
  constexpr std::string_view kOps = "torch.ops.";
  if (!target.starts_with(kOps)) return std::string(target);
  target.remove_prefix(kOps.size());
  const std::size_t first = target.find('.'), last = target.rfind('.');
  if (first == std::string_view::npos || first == last) return std::string(target);
  return std::string(target.substr(0, first))
      .append("::")
      .append(target.substr(first + 1, last - first - 1));
}

}  // namespace demi::imported
