#include "demi/imported/prepare_nested.h"

#include <fmt/format.h>

#include <algorithm>

#include "demi/core/error.h"

namespace demi::imported {
namespace {

constexpr std::string_view kHigherOrder = "torch.ops.higher_order.";

[[noreturn]] void refuse_nested(const Node& node, std::string_view seen, std::string_view accepted,
                                std::string_view advice) {
  refuse({.where = "imported.ImportedModel",
          .what = describe(node) + " cannot be trained",
          .seen = seen,
          .accepted = accepted,
          .advice = advice});
}

const Argument& argument_at(const Node& node, std::size_t place) {
  if (place >= node.inputs.size())
    refuse_nested(node, fmt::format("{} arguments", node.inputs.size()), "its graph and more",
                  "export it again");
  return node.inputs[place].argument;
}

template <class Kind>
const Kind& at(const Node& node, std::size_t place) {
  const Kind* value = argument_at(node, place).as<Kind>();
  if (value == nullptr)
    refuse_nested(node, fmt::format("another kind of argument {}", place),
                  "the arguments that PyTorch 2.11 to 2.15 write", "export it again");
  return *value;
}

/// The positional arguments behind the graph, which has this place.
NestedCall call_graph(const Node& node, std::size_t place,
                      const std::function<InputRole(const Argument&)>& role_of,
                      const TrainingFlags& flags) {
  const auto& graph = at<SubGraph>(node, place);
  NestedCall call;
  std::vector<InputRole> roles;
  for (std::size_t i = place + 1; i < node.inputs.size(); ++i) {
    if (!node.inputs[i].name.empty()) continue;
    call.inputs.push_back(node.inputs[i].argument);
    roles.push_back(role_of(node.inputs[i].argument));
    call.nested.is_state.push_back(roles.back().is_state);
  }
  if (graph.graph->inputs.size() != call.inputs.size())
    refuse_nested(node, fmt::format("{} inputs", call.inputs.size()),
                  fmt::format("{}, as its graph has", graph.graph->inputs.size()),
                  "export it again");
  call.nested.graph = prepare(*graph.graph, roles, flags);
  return call;
}

bool keyword(const Node& node, std::string_view name, bool otherwise) {
  const auto found = std::ranges::find(node.inputs, name, &NamedArgument::name);
  const bool* value = found == node.inputs.end() ? nullptr : found->argument.as<bool>();
  return value == nullptr ? otherwise : *value;
}

}  // namespace

bool is_higher_order(std::string_view target) { return target.starts_with(kHigherOrder); }

NestedCall prepare_nested(const Node& node,
                          const std::function<InputRole(const Argument&)>& role_of,
                          const TrainingFlags& flags) {
  const std::string_view name = std::string_view(node.target).substr(kHigherOrder.size());
  if (name == "wrap_with_set_grad_enabled") {
    NestedCall call = call_graph(node, 1, role_of, flags);
    call.nested.kind = Nested::Kind::gradients;
    call.nested.enabled = at<bool>(node, 0);
    return call;
  }
  if (name == "wrap_with_autocast") {  // device type, dtype, enabled, cache, graph
    NestedCall call = call_graph(node, 4, role_of, flags);
    call.nested.kind = Nested::Kind::autocast;
    call.nested.enabled = at<bool>(node, 2);
    if (const auto* dtype = argument_at(node, 1).as<c10::ScalarType>()) call.nested.dtype = *dtype;
    return call;
  }
  if (name == "tag_activation_checkpoint") {
    NestedCall call = call_graph(node, 0, role_of, flags);
    call.nested.kind = Nested::Kind::checkpoint;
    call.nested.preserve_random_state = keyword(node, "preserve_rng_state", true);
    return call;
  }
  refuse_nested(node, name,
                "wrap_with_set_grad_enabled, wrap_with_autocast and "
                "tag_activation_checkpoint",
                "write that line without it and export again");
}

}  // namespace demi::imported
