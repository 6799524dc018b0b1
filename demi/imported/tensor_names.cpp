#include "demi/imported/tensor_names.h"

#include <algorithm>

namespace demi::imported {

TensorNames tensor_names(const Program& program) {
  TensorNames names;
  for (const InputSpec& input : program.inputs)
    if (input.kind == InputKind::parameter || input.kind == InputKind::buffer)
      names[input.name] = input.target;
  return names;
}

std::vector<NamedArgument>::const_iterator find_subgraph(const Node& node) {
  return std::ranges::find_if(node.inputs, [](const NamedArgument& input) {
    return input.argument.as<SubGraph>() != nullptr;
  });
}

TensorNames names_within(const Node& node, const TensorNames& names) {
  TensorNames inner;
  auto outside = find_subgraph(node);
  if (outside == node.inputs.end()) return inner;
  for (const Argument& input : outside->argument.as<SubGraph>()->graph->inputs) {
    if (++outside == node.inputs.end()) break;
    const auto* inside = input.as<ValueName>();
    const std::string_view name = tensor_name(outside->argument, names);
    if (inside != nullptr && !name.empty()) inner[inside->name] = name;
  }
  return inner;
}

std::string module_of(std::string_view tensor) {
  const std::size_t dot = tensor.rfind('.');
  return std::string(tensor.substr(0, dot == std::string_view::npos ? 0 : dot));
}

std::string_view tensor_name(const Argument& argument, const TensorNames& names) {
  const auto* value = argument.as<ValueName>();
  const auto known = value == nullptr ? names.end() : names.find(value->name);
  return known == names.end() ? std::string_view() : known->second;
}

}  // namespace demi::imported
