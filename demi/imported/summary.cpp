#include "demi/imported/summary.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <limits>
#include <utility>
#include <variant>

#include "demi/core/error.h"
#include "demi/imported/archive.h"
#include "demi/imported/fusion.h"
#include "demi/imported/identity.h"
#include "demi/imported/prepare.h"
#include "demi/imported/size_expression.h"
#include "demi/imported/tensor_names.h"
#include "demi/imported/training_mode.h"

namespace demi::imported {
namespace {

std::string text_of(const Extent& extent) {
  if (extent.expression.empty()) return std::to_string(extent.fixed);
  const std::optional<SizeExpression> expression = SizeExpression::parse(extent.expression);
  return expression ? expression->text() : "?";
}

std::string describe_input(const Program& program, const InputSpec& input) {
  const auto meta = program.graph.tensors.find(input.name);
  if (meta == program.graph.tensors.end()) return input.name;
  std::vector<std::string> sizes;
  for (const Extent& extent : meta->second.sizes) sizes.push_back(text_of(extent));
  return fmt::format("{}: {} ({})", input.name, c10::toString(meta->second.dtype),
                     fmt::join(sizes, ", "));
}

SizeSummary summarize_size(const Program& program, const Extent& extent) {
  SizeSummary size{.text = text_of(extent), .least = extent.fixed, .most = extent.fixed};
  if (extent.expression.empty()) return size;
  size.least = 0;
  size.most = std::numeric_limits<std::int64_t>::max();
  const std::optional<SizeExpression> expression = SizeExpression::parse(extent.expression);
  const auto range = program.ranges.find(expression ? expression->symbol() : "");
  if (range == program.ranges.end()) return size;
  // Allows 0 and 1, too, for a range that begins at 2, as InputCheck does.
  size.least = range->second.least > 2 ? range->second.least : 0;
  size.most = range->second.most;
  return size;
}

InputSummary summarize_input(const Program& program, const InputSpec& input) {
  const auto meta = program.graph.tensors.find(input.name);
  InputSummary summary{.name = input.name, .is_tensor = meta != program.graph.tensors.end()};
  if (!summary.is_tensor) return summary;
  summary.dtype = meta->second.dtype;
  for (const Extent& extent : meta->second.sizes)
    summary.sizes.push_back(summarize_size(program, extent));
  return summary;
}

void add_tensors(const Argument& argument, const TensorNames& names,
                 std::vector<std::string>& tensors) {
  if (const auto* list = argument.as<Arguments>())
    for (const Argument& element : *list) add_tensors(element, names, tensors);
  if (const std::string_view name = tensor_name(argument, names); !name.empty())
    tensors.emplace_back(name);
}

void add_operations(const Graph& graph, const TensorNames& names, GraphSummary& summary) {
  for (const Node& node : graph.nodes) {
    const std::string name = operator_name(node.target);
    ++summary.operators[name];
    OperationSummary& operation = summary.operations.emplace_back(
        OperationSummary{.op = name, .module = node.place.module, .line = node.place.line});
    const auto nested = find_subgraph(node);
    for (auto input = node.inputs.begin(); input != nested; ++input)
      add_tensors(input->argument, names, operation.tensors);
    if (nested != node.inputs.end())
      add_operations(*nested->argument.as<SubGraph>()->graph, names_within(node, names), summary);
  }
}

/// The mode in which the graph was exported: train, eval or unknown. If there are two graphs, the
/// name is the mode (pick_programs).
std::string mode_of(const Program& program, bool is_one_of_two) {
  if (is_one_of_two) return program.name == "eval" ? "eval" : "train";
  const ExportedMode mode = exported_mode(program);
  return mode == ExportedMode::train ? "train" : mode == ExportedMode::eval ? "eval" : "unknown";
}

/// What ImportedModel::fusible() returns, found without the weights.
std::vector<std::string> fusible_of(const Program& program, bool is_one_of_two) {
  std::vector<InputRole> roles;
  for (const InputSpec& input : program.inputs) {
    const bool is_state = input.kind == InputKind::parameter || input.kind == InputKind::buffer ||
                          input.kind == InputKind::constant;
    roles.push_back({.is_state = is_state, .name = is_state ? input.target : ""});
  }
  std::vector<std::string> places;
  try {
    const TrainingFlags flags(exported_mode(program), /*rewrites=*/!is_one_of_two);
    add_fusions(*prepare(program.graph, roles, flags), places);
  } catch (const Error&) {  // NOLINT(bugprone-empty-catch): ImportedModel says what cannot be run
  }
  return places;
}

GraphSummary summarize_graph(const Program& program, bool is_one_of_two) {
  GraphSummary summary{.name = program.name,
                       .mode = mode_of(program, is_one_of_two),
                       .is_decomposed = !program.is_training_dialect};
  for (const OutputSpec& output : program.outputs) {
    if (!output.is_tensor || (output.kind != OutputKind::user && output.kind != OutputKind::loss))
      continue;
    ++summary.outputs;
    std::vector<SizeSummary>& sizes = summary.output_sizes.emplace_back();
    const auto known = program.graph.output_sizes.find(output.value.as<ValueName>()->name);
    if (known == program.graph.output_sizes.end()) continue;
    for (const Extent& extent : known->second) sizes.push_back(summarize_size(program, extent));
  }
  for (const InputSpec& input : program.inputs)
    if (input.kind == InputKind::user) {
      summary.inputs.push_back(describe_input(program, input));
      summary.arguments.push_back(summarize_input(program, input));
    }
  for (const TreeSpec::Key& key : program.out_spec.keys)
    if (const auto* name = std::get_if<std::string>(&key)) summary.output_names.push_back(*name);
  add_operations(program.graph, tensor_names(program), summary);
  summary.fusible = fusible_of(program, is_one_of_two);
  return summary;
}

TensorSummary summarize_tensor(const std::string& name, const StoredTensor& stored) {
  TensorSummary summary{.name = name,
                        .dtype = stored.meta.dtype,
                        .is_parameter = stored.is_parameter,
                        .is_trainable = stored.is_parameter && stored.meta.requires_grad};
  for (const Extent& size : stored.meta.sizes) summary.sizes.push_back(size.fixed);
  return summary;
}

}  // namespace

FileSummary summarize(const std::filesystem::path& file) {
  const Archive archive(file);
  const Program& first = archive.programs().front();
  FileSummary summary{.torch_version = first.torch_version, .identity = identity_of(archive)};
  const bool is_pair = archive.programs().size() == 2 && first.name == "model" &&
                       archive.programs()[1].name == "eval";
  for (const Program& program : archive.programs())
    summary.graphs.push_back(summarize_graph(program, is_pair));
  std::vector<std::pair<std::string, const StoredTensor*>> firsts;
  for (const auto& [name, stored] : archive.weights(first.name)) {
    summary.tensors.push_back(summarize_tensor(name, stored));
    for (const auto& [earlier, other] : firsts)
      if (same_tensor(*other, stored)) summary.tensors.back().same_as = earlier;
    if (summary.tensors.back().same_as.empty()) firsts.emplace_back(name, &stored);
  }
  return summary;
}

}  // namespace demi::imported
