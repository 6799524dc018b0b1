#include "demi/imported/lost_gradients.h"

#include <algorithm>
#include <map>
#include <set>

#include "demi/core/error.h"
#include "demi/imported/prepare.h"
#include "demi/imported/tensor_names.h"
#include "demi/imported/training_mode.h"

namespace demi::imported {
namespace {

void for_each_value(const Argument& argument, const std::function<void(const std::string&)>& use) {
  if (const auto* value = argument.as<ValueName>()) use(value->name);
  if (const auto* all = argument.as<Arguments>())
    for (const Argument& one : *all) for_each_value(one, use);
}

std::vector<std::string> values_of(const Arguments& arguments) {
  std::vector<std::string> names;
  for (const Argument& argument : arguments)
    for_each_value(argument, [&](const std::string& name) { names.push_back(name); });
  return names;
}

bool writes_in_place(const Node& node) {
  const std::string op = operator_name(node.target);
  return op.ends_with('_') && !op.ends_with("__");
}

/// The parameters that a graph reads with and without gradients, and those that it writes to.
class WeightUses {
 public:
  /// Notes the graph's uses. `names` are Python's names of its values. Returns the names of its
  /// outputs, "" for those without.
  std::vector<std::string> look_at(const Graph& graph, TensorNames names, bool has_gradients) {
    for (const Node& node : graph.nodes) {
      const auto nested = find_subgraph(node);
      if (nested == node.inputs.end())
        look_at(node, names, has_gradients);
      else
        look_into(node, *nested->argument.as<SubGraph>()->graph, names, has_gradients);
    }
    std::vector<std::string> outputs;
    for (const std::string& value : values_of(graph.outputs))
      outputs.push_back(names.contains(value) ? names[value] : "");
    return outputs;
  }

  std::map<std::string, const Node*> without_gradients;  // where first
  std::set<std::string> with_gradients, written;

 private:
  void look_at(const Node& node, TensorNames& names, bool has_gradients) {
    for (const NamedArgument& input : node.inputs)
      for_each_value(input.argument, [&](const std::string& value) {
        const auto name = names.find(value);
        if (name == names.end()) return;
        if (has_gradients)
          with_gradients.insert(name->second);
        else
          without_gradients.emplace(name->second, &node);
      });
    if (!writes_in_place(node) || node.inputs.empty()) return;
    const std::string name(tensor_name(node.inputs[0].argument, names));
    if (name.empty()) return;
    written.insert(name);
    for (const std::string& result : values_of(node.outputs)) names[result] = name;
  }

  void look_into(const Node& node, const Graph& graph, TensorNames& names, bool has_gradients) {
    const bool sets_mode = node.target.ends_with("wrap_with_set_grad_enabled");
    const bool* enabled = sets_mode ? node.inputs[0].argument.as<bool>() : nullptr;
    const std::vector<std::string> outputs =
        look_at(graph, names_within(node, names), enabled ? *enabled : has_gradients);
    const std::vector<std::string> results = values_of(node.outputs);
    for (std::size_t i = 0; i < std::min(results.size(), outputs.size()); ++i)
      if (!outputs[i].empty()) names[results[i]] = outputs[i];
  }
};

const StateTensor* find_trained(const std::vector<StateTensor>& state, const std::string& name) {
  const auto found = std::ranges::find(state, name, &StateTensor::name);
  return found == state.end() || !found->is_trainable ? nullptr : &*found;
}

}  // namespace

void refuse_weights_without_gradients(const Program& program,
                                      const std::vector<StateTensor>& state) {
  WeightUses uses;
  for (const std::string& name : uses.look_at(program.graph, tensor_names(program), true))
    uses.with_gradients.insert(name);
  // A tied weight has a name for each tie.
  std::set<const at::TensorImpl*> reached;
  for (const auto* names : {&uses.with_gradients, &uses.written})
    for (const std::string& name : *names)
      if (const StateTensor* weight = find_trained(state, name))
        reached.insert(weight->tensor.unsafeGetTensorImpl());
  for (const auto& [name, node] : uses.without_gradients) {
    const StateTensor* weight = find_trained(state, name);
    if (weight == nullptr || reached.contains(weight->tensor.unsafeGetTensorImpl())) continue;
    refuse({.where = "imported.ImportedModel",
            .what = describe(*node) + " cannot be trained",
            .seen = "a part without gradients, and no other, reads the weight " + name,
            .accepted = "weights that get a gradient, are written to, or are frozen",
            .advice = "freeze it before the export. If this is a checkpoint: export with "
                      "use_reentrant=False, else this weight would never be trained"});
  }
}

std::vector<std::string> aliases_of_trained(const Program& program,
                                            const std::vector<StateTensor>& state) {
  std::set<std::string> trained;  // values that depend on a weight
  for (const InputSpec& input : program.inputs)
    if (input.kind == InputKind::parameter && find_trained(state, input.target))
      trained.insert(input.name);
  std::vector<std::string> places;
  for (const Node& node : program.graph.nodes) {
    bool is_trained = false;
    for (const NamedArgument& input : node.inputs)
      for_each_value(input.argument,
                     [&](const std::string& value) { is_trained |= trained.contains(value); });
    if (!is_trained) continue;
    if (operator_name(node.target) == "aten::alias") places.push_back(describe(node));
    for (const std::string& result : values_of(node.outputs)) trained.insert(result);
  }
  return places;
}

}  // namespace demi::imported
