#include "demi/imported/prepare.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <fmt/format.h>
#include <torch/version.h>

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <utility>

#include "demi/core/error.h"
#include "demi/imported/operands.h"
#include "demi/imported/prepare_nested.h"
#include "demi/imported/tensor_names.h"

namespace demi::imported {
namespace {

constexpr std::string_view kWhere = "imported.ImportedModel";

// Assertions that hold for the exported dtypes; a region changes some of these.
constexpr std::string_view kNotRun[] = {"aten::_assert_tensor_metadata"};

// Reads and writes files: a network has no business with it.
constexpr std::string_view kRefused[] = {"aten::from_file"};

void refuse_operator(const Node& node, std::string_view seen, std::string_view accepted,
                     std::string_view advice) {
  refuse({.where = kWhere,
          .what = describe(node) + " cannot be run",
          .seen = seen,
          .accepted = accepted,
          .advice = advice});
}

c10::OperatorHandle find_operator(const Node& node) {
  const std::string name = operator_name(node.target);
  const std::size_t dot = node.target.rfind('.');
  std::string overload = dot == std::string::npos ? "" : node.target.substr(dot + 1);
  if (overload == "default") overload.clear();
  const bool is_refused = std::ranges::find(kRefused, name) != std::end(kRefused);
  std::optional<c10::OperatorHandle> op;
  if (name.find("::") != std::string::npos && !is_refused)
    op = c10::Dispatcher::singleton().findSchema({name, overload});
  if (!op)
    refuse_operator(node, node.target,
                    fmt::format("operators of this LibTorch ({}), and those that a library which "
                                "the program loads registers",
                                TORCH_VERSION),
                    "export with a version of PyTorch that is not newer, without this operator, or "
                    "load its library first");
  return *op;
}

/// The node's place. A node with a graph inside may have none: then it is the place of the first
/// node in there.
const PythonPlace& place_of(const Node& node) {
  if (!node.place.line.empty()) return node.place;
  for (const NamedArgument& input : node.inputs)
    if (const auto* inner = input.argument.as<SubGraph>())
      for (const Node& first : inner->graph->nodes)
        if (const PythonPlace& place = place_of(first); !place.line.empty()) return place;
  return node.place;
}

/// Makes one PreparedGraph.
class Preparation {
 public:
  Preparation(const Graph& graph, const std::vector<InputRole>& roles, const TrainingFlags& flags)
      : graph_(graph), roles_(roles), flags_(flags) {}

  std::shared_ptr<const PreparedGraph> make() {
    result_->input_count = static_cast<std::int32_t>(graph_.inputs.size());
    for (std::size_t i = 0; i < graph_.inputs.size(); ++i) {
      const std::int32_t slot = result_->slot_count++;
      if (const auto* value = graph_.inputs[i].as<ValueName>()) {
        slots_[value->name] = slot;
        if (i < roles_.size()) role_of_[value->name] = roles_[i];
      }
    }
    for (const Node& node : graph_.nodes) add(node);
    for (const Argument& output : graph_.outputs) add_output(output);
    release_values();
    find_fusions(*result_);
    return std::move(result_);
  }

 private:
  FindSlot find_slot() {
    return [this](const std::string& name) { return slots_.at(name); };
  }

  void add(const Node& node) {
    const std::string name = operator_name(node.target);
    if (std::ranges::find(kNotRun, name) != std::end(kNotRun)) return;
    Instruction instruction{.place = describe(node)};
    if (name == "aten::_assert_scalar")
      add_plain(node, instruction, Instruction::Kind::assertion);
    else if (name == "aten::sym_constrain_range" || name == "aten::sym_constrain_range_for_size")
      add_plain(node, instruction, Instruction::Kind::range);
    else if (name == "aten::sym_size" && node.inputs.size() == 2)
      add_plain(node, instruction, Instruction::Kind::size);
    else if (name == "aten::sym_numel" && node.inputs.size() == 1)
      add_plain(node, instruction, Instruction::Kind::element_count);
    else if ((instruction.function = symbolic_function(node.target)) != nullptr)
      add_plain(node, instruction, Instruction::Kind::symbolic);
    else if (is_higher_order(node.target))
      add_nested(node, instruction);
    else
      add_operator(node, instruction);
    add_results(node, instruction);
    result_->instructions.push_back(std::move(instruction));
  }

  void add_plain(const Node& node, Instruction& instruction, Instruction::Kind kind) {
    instruction.kind = kind;
    for (const NamedArgument& input : node.inputs)
      instruction.operands.push_back(
          require_operand(node, input.name, plain_operand(input.argument, find_slot())));
  }

  static Operand require_operand(const Node& node, std::string_view name,
                                 std::optional<Operand> operand) {
    if (!operand)
      refuse_operator(node, fmt::format("another kind of value for its argument {}", name),
                      "values of the kinds that the operator's schema has",
                      "the file is damaged, or of another version: export it again");
    return std::move(*operand);
  }

  void add_nested(const Node& node, Instruction& instruction) {
    const auto is_state = [this](const Argument& argument) {
      const auto* value = argument.as<ValueName>();
      const auto role = value == nullptr ? role_of_.end() : role_of_.find(value->name);
      return role == role_of_.end() ? InputRole{} : role->second;
    };
    NestedCall call = prepare_nested(node, is_state, flags_);
    instruction.kind = Instruction::Kind::nested;
    instruction.nested = std::make_shared<const Nested>(std::move(call.nested));
    for (const Argument& argument : call.inputs)
      instruction.operands.push_back(
          require_operand(node, "of the graph", plain_operand(argument, find_slot())));
  }

  void add_operator(const Node& node, Instruction& instruction) {
    instruction.op = find_operator(node);
    const c10::FunctionSchema& schema = instruction.op->schema();
    std::size_t used = 0;
    for (const c10::Argument& argument : schema.arguments()) {
      const auto given = std::ranges::find(node.inputs, argument.name(), &NamedArgument::name);
      if (given == node.inputs.end()) {
        instruction.operands.push_back(default_of(node, argument));
        continue;
      }
      ++used;
      instruction.operands.push_back(require_operand(
          node, argument.name(), operand_of(given->argument, argument, find_slot())));
      add_mode(node, *given, instruction);
    }
    if (used != node.inputs.size())
      refuse_operator(node, fmt::format("{} arguments", node.inputs.size()), c10::str(schema),
                      "export with a version of PyTorch that is not newer");
    note_count(node, instruction);
    instruction.statistics = statistics_check(schema);
    instruction.fills = fill_values(schema);
    instruction.returns_list = schema.returns().size() == 1 &&
                               schema.returns()[0].type()->kind() == c10::TypeKind::ListType;
  }

  static Operand default_of(const Node& node, const c10::Argument& argument) {
    if (argument.default_value()) return {.constant = *argument.default_value()};
    if (argument.type()->kind() == c10::TypeKind::OptionalType) return {};
    refuse_operator(node, fmt::format("no argument {}", argument.name()),
                    "an argument for all that have no default", "export it again");
    return {};
  }

  /// Makes the operand that was added last follow the mode if it is a flag of training or dropout's
  /// probability.
  void add_mode(const Node& node, const NamedArgument& given, Instruction& instruction) const {
    const bool* flag = flag_of(node, given);
    if (flag == nullptr && probability_of(node, given) == nullptr) return;
    Operand& operand = instruction.operands.back();
    operand.kind = Operand::Kind::in_training;
    operand.follows_network = flag ? flags_.follows(*flag) : flags_.follows_probability();
    // The flag that is off in the mode of the export is on in training.
    if (flag && operand.follows_network) operand.constant = true;
    const auto mean = std::ranges::find(node.inputs, "running_mean", &NamedArgument::name);
    const auto* value = mean == node.inputs.end() ? nullptr : mean->argument.as<ValueName>();
    const auto role = value == nullptr ? role_of_.end() : role_of_.find(value->name);
    instruction.module = role == role_of_.end() ? node.place.module : module_of(role->second.name);
  }

  /// num_batches_tracked.add_(1), a node of its own, whose result a second one counts on.
  void note_count(const Node& node, Instruction& instruction) {
    const auto* value = node.inputs.empty() ? nullptr : node.inputs[0].argument.as<ValueName>();
    const auto role = value == nullptr ? role_of_.end() : role_of_.find(value->name);
    const std::string op = operator_name(node.target);
    if (role == role_of_.end() || !role->second.counts_batches() || node.outputs.size() != 1 ||
        (op != "aten::add_" && op != "aten::add"))
      return;
    instruction.counts_batches = true;
    instruction.follows_network = flags_.rewrites();
    instruction.module = module_of(role->second.name);
    if (const auto* result = node.outputs[0].as<ValueName>())
      role_of_[result->name] = {.name = role->second.name};
  }

  void add_results(const Node& node, Instruction& instruction) {
    for (const Argument& output : node.outputs) {
      if (const auto* all = output.as<Arguments>(); all != nullptr && instruction.returns_list)
        for (const Argument& element : *all) add_result(node, element, instruction);
      else
        add_result(node, output, instruction);
    }
    const std::size_t returned =
        instruction.op ? instruction.op->schema().returns().size() : instruction.results.size();
    if (!instruction.returns_list && returned != instruction.results.size())
      refuse_operator(node, fmt::format("{} results", instruction.results.size()),
                      fmt::to_string(returned),
                      "export with a version of PyTorch that is not newer");
  }

  void add_result(const Node& node, const Argument& output, Instruction& instruction) {
    if (output.is_none()) {
      instruction.results.push_back(-1);
      return;
    }
    const auto* value = output.as<ValueName>();
    if (value == nullptr)
      refuse_operator(node, "a list among its results", "values",
                      "the network is of a kind that is not supported");
    slots_[value->name] = result_->slot_count;
    instruction.results.push_back(result_->slot_count++);
  }

  void add_output(const Argument& output) {
    std::optional<Operand> operand = plain_operand(output, find_slot());
    require(operand.has_value(), {.where = kWhere,
                                  .what = "an output of the network is of an unknown kind",
                                  .accepted = "tensors, numbers, texts and None"});
    result_->outputs.push_back(std::move(*operand));
  }

  static void read_slots(const Operand& operand, std::set<std::int32_t>& slots) {
    if (operand.slot >= 0) slots.insert(operand.slot);
    for (const Operand& element : operand.elements) read_slots(element, slots);
  }

  /// Goes from the end: the first instruction found to read a slot is the last that does.
  void release_values() {
    std::set<std::int32_t> seen{PreparedGraph::kDeviceSlot};
    for (const Operand& output : result_->outputs) read_slots(output, seen);
    for (auto instruction = result_->instructions.rbegin();
         instruction != result_->instructions.rend(); ++instruction) {
      std::set<std::int32_t> touched;
      for (const Operand& operand : instruction->operands) read_slots(operand, touched);
      for (std::int32_t& slot : instruction->results)
        if (slot >= 0 && !seen.contains(slot)) slot = -1;
      for (const std::int32_t slot : touched)
        if (seen.insert(slot).second) instruction->last_uses.push_back(slot);
    }
  }

  const Graph& graph_;
  const std::vector<InputRole>& roles_;
  const TrainingFlags& flags_;
  std::shared_ptr<PreparedGraph> result_ = std::make_shared<PreparedGraph>();
  std::map<std::string, std::int32_t> slots_;
  std::map<std::string, InputRole> role_of_;
};

}  // namespace

std::shared_ptr<const PreparedGraph> prepare(const Graph& graph,
                                             const std::vector<InputRole>& inputs,
                                             const TrainingFlags& flags) {
  return Preparation(graph, inputs, flags).make();
}

std::string describe(const Node& node) {
  const PythonPlace& place = place_of(node);
  std::string text = operator_name(node.target);
  if (!place.module.empty()) text += " in " + place.module;
  if (!place.line.empty()) text += " (" + place.line + ")";
  return text;
}

}  // namespace demi::imported
