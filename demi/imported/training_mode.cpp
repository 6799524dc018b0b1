#include "demi/imported/training_mode.h"

#include <algorithm>

namespace demi::imported {
namespace {

struct Flag {
  std::string_view op, argument;
};

// Operators that do another thing in training, and the argument that says so
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
    {"aten::batch_norm", "training"},
    {"aten::native_batch_norm", "training"},
    {"aten::cudnn_batch_norm", "training"},
    {"aten::_native_batch_norm_legit", "training"},
    {"aten::_native_batch_norm_legit_functional", "training"},
    {"aten::lstm", "train"},
    {"aten::gru", "train"},
    {"aten::rnn_tanh", "train"},
    {"aten::rnn_relu", "train"},
};

const bool* flag_of(const Node& node, const NamedArgument& input) {
  const std::string op = operator_name(node.target);
  const bool is_flag = std::ranges::any_of(
      kFlags, [&](const Flag& flag) { return flag.op == op && flag.argument == input.name; });
  return is_flag ? input.argument.as<bool>() : nullptr;
}

void look_at(const Graph& graph, bool& is_on, bool& is_off) {
  for (const Node& node : graph.nodes)
    for (const NamedArgument& input : node.inputs) {
      if (const auto* inner = input.argument.as<SubGraph>()) look_at(*inner->graph, is_on, is_off);
      if (const bool* flag = flag_of(node, input)) (*flag ? is_on : is_off) = true;
    }
}

}  // namespace

ExportedMode exported_mode(const Graph& graph) {
  bool is_on = false, is_off = false;
  look_at(graph, is_on, is_off);
  return is_on ? ExportedMode::train : is_off ? ExportedMode::eval : ExportedMode::unknown;
}

bool TrainingFlags::follows(const Node& node, const NamedArgument& input) const {
  if (!rewrites()) return false;
  const bool* flag = flag_of(node, input);
  return flag != nullptr && (*flag || mode_ == ExportedMode::eval);
}

bool TrainingFlags::is_probability(const Node& node, const NamedArgument& input) const {
  return rewrites() && mode_ == ExportedMode::train && input.name == "dropout_p" &&
         operator_name(node.target) == "aten::scaled_dot_product_attention" &&
         input.argument.as<double>() != nullptr;
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
