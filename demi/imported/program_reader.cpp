#include "demi/imported/program_reader.h"

#include <fmt/format.h>

#include <limits>
#include <optional>
#include <set>
#include <utility>

#include "demi/imported/graph_reader.h"

namespace demi::imported {
namespace {

constexpr std::int64_t kSchemaMajor = 8;

std::string name_in(const Field& spec) { return spec.at("arg").at("name").text(); }

InputSpec read_user_input(const Field& spec, Source& source) {
  Argument argument = read_argument(spec.at("arg"), source);
  if (const auto* value = argument.as<ValueName>()) return {.name = value->name};
  return {.kind = InputKind::fixed, .value = std::move(argument)};
}

InputSpec read_input(const Field& field, Source& source) {
  const auto [kind, spec] = field.only();
  if (kind == "user_input") return read_user_input(spec, source);
  if (kind == "parameter")
    return {.kind = InputKind::parameter,
            .name = name_in(spec),
            .target = spec.at("parameter_name").text()};
  if (kind == "buffer")
    return {.kind = InputKind::buffer,
            .name = name_in(spec),
            .target = spec.at("buffer_name").text(),
            .persistent = spec.at("persistent").get<bool>()};
  if (kind == "tensor_constant")
    return {.kind = InputKind::constant,
            .name = name_in(spec),
            .target = spec.at("tensor_constant_name").text()};
  if (kind == "constant_input")
    return {.kind = InputKind::fixed, .value = read_argument(spec.at("value"), source)};
  if (kind == "custom_obj")
    return {.kind = InputKind::custom_object,
            .name = name_in(spec),
            .target = spec.at("custom_obj_name").text()};
  if (kind == "token") return {.kind = InputKind::token, .name = name_in(spec)};
  field.refuse("is an input of an unknown kind", "what schema 8 of PyTorch's export has");
}

OutputSpec read_output(const Field& field, Source& source) {
  const auto [kind, spec] = field.only();
  if (kind == "user_output")
    return {.kind = OutputKind::user,
            .value = read_argument(spec.at("arg"), source),
            .is_tensor = spec.at("arg").only().first == "as_tensor"};
  const auto written = [&, &output = spec](OutputKind which, std::string_view target) {
    return OutputSpec{
        .kind = which, .value = {ValueName{name_in(output)}}, .target = output.at(target).text()};
  };
  if (kind == "loss_output") return {.kind = OutputKind::loss, .value = {ValueName{name_in(spec)}}};
  if (kind == "buffer_mutation") return written(OutputKind::buffer, "buffer_name");
  if (kind == "parameter_mutation") return written(OutputKind::parameter, "parameter_name");
  if (kind == "user_input_mutation") return written(OutputKind::user_input, "user_input_name");
  if (kind == "token") return {.kind = OutputKind::token};
  field.refuse("is an output of a kind that is not supported",
               "results, and writes to buffers, parameters and inputs");
}

Field main_call(const Field& graph_module) {
  std::optional<Field> found;
  graph_module.at("module_call_graph").each([&](const Field& entry) {
    if (!found && entry.at("fqn").text().empty()) found = entry.find("signature");
  });
  if (!found) graph_module.refuse("has no signature of forward", "module_call_graph with one");
  return *found;
}

std::map<std::string, SymbolRange> read_ranges(const Field& field) {
  std::map<std::string, SymbolRange> ranges;
  field.members([&](const std::string& symbol, const Field& range) {
    SymbolRange limits{std::numeric_limits<std::int64_t>::min(),
                       std::numeric_limits<std::int64_t>::max()};
    if (const auto least = range.find("min_val")) limits.least = least->get<std::int64_t>();
    if (const auto most = range.find("max_val")) limits.most = most->get<std::int64_t>();
    ranges.emplace(symbol, limits);
  });
  return ranges;
}

const std::string* name_of(const Argument& argument) {
  const auto* value = argument.as<ValueName>();
  return value == nullptr ? nullptr : &value->name;
}

/// Refuses a value that is used before a node makes it, and one that is made twice.
class ValueCheck {
 public:
  explicit ValueCheck(const Field& field) : field_(field) {}

  void check(const Graph& graph) {
    std::set<std::string> known;
    for (const Argument& input : graph.inputs) define(input, known);
    for (const Node& node : graph.nodes) {
      for (const NamedArgument& input : node.inputs) use(input.argument, known);
      for (const Argument& output : node.outputs) define(output, known);
    }
    for (const Argument& output : graph.outputs) use(output, known);
  }

 private:
  void define(const Argument& argument, std::set<std::string>& known) {
    if (const std::string* name = name_of(argument); name != nullptr && !known.insert(*name).second)
      field_.refuse(fmt::format("makes {} twice", *name), "each value once");
    if (const auto* all = argument.as<Arguments>())
      for (const Argument& one : *all) define(one, known);
  }

  void use(const Argument& argument, const std::set<std::string>& known) {
    if (const std::string* name = name_of(argument); name != nullptr && !known.contains(*name))
      field_.refuse(fmt::format("uses {}, which nothing made", *name), "values that were made");
    if (const auto* all = argument.as<Arguments>())
      for (const Argument& one : *all) use(one, known);
    if (const auto* entries = argument.as<std::map<std::string, Argument>>())
      for (const auto& [key, one] : *entries) use(one, known);
    if (const auto* inner = argument.as<SubGraph>()) check(*inner->graph);
  }

  const Field& field_;
};

void check_inputs(const Field& field, const Program& program) {
  const TreeSpec& spec = program.in_spec;
  if (spec.kind != TreeSpec::Kind::tuple || spec.children.size() != 2 ||
      spec.children[0].kind == TreeSpec::Kind::leaf ||
      spec.children[0].kind == TreeSpec::Kind::dict ||
      spec.children[1].kind != TreeSpec::Kind::dict)
    field.refuse("has arguments of another form", "a tuple of positional ones and a dict");
  const Arguments& inputs = program.graph.inputs;
  if (inputs.size() != program.inputs.size())
    field.refuse("has another number of inputs than its signature",
                 fmt::format("{}", program.inputs.size()));
  std::size_t of_user = 0;
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    const InputSpec& spec = program.inputs[i];
    of_user += spec.kind == InputKind::user || spec.kind == InputKind::fixed ? 1 : 0;
    const std::string* name = name_of(inputs[i]);
    if (spec.kind != InputKind::fixed && (name == nullptr || *name != spec.name))
      field.refuse(fmt::format("has another input {} than its signature", i), spec.name);
  }
  if (of_user != program.in_spec.leaves)
    field.refuse("has another number of inputs than forward's arguments",
                 fmt::format("{}", program.in_spec.leaves));
}

void check_outputs(const Field& field, const Program& program) {
  const Arguments& outputs = program.graph.outputs;
  if (outputs.size() != program.outputs.size())
    field.refuse("has another number of outputs than its signature",
                 fmt::format("{}", program.outputs.size()));
  std::size_t of_user = 0;
  for (std::size_t i = 0; i < outputs.size(); ++i) {
    const OutputSpec& spec = program.outputs[i];
    of_user += spec.kind == OutputKind::user || spec.kind == OutputKind::loss ? 1 : 0;
    const std::string *given = name_of(outputs[i]), *said = name_of(spec.value);
    if (spec.kind != OutputKind::token && said != nullptr && (given == nullptr || *given != *said))
      field.refuse(fmt::format("has another output {} than its signature", i), *said);
  }
  if (of_user != program.out_spec.leaves)
    field.refuse("has another number of outputs than forward's results",
                 fmt::format("{}", program.out_spec.leaves));
}

}  // namespace

Program read_program(const Field& field, Source& source, const std::string& name) {
  const std::int64_t major = field.at("schema_version").at("major").get<std::int64_t>();
  if (major != kSchemaMajor)
    field.at("schema_version")
        .refuse("is another one than is known here",
                fmt::format("{}: export with PyTorch 2.9 or newer, or use a "
                            "demi that knows it",
                            kSchemaMajor));
  const Field graph_module = field.at("graph_module"), call = main_call(graph_module);
  Program program{.name = name, .graph = read_graph(graph_module.at("graph"), source)};
  if (const auto version = field.find("torch_version")) program.torch_version = version->text();
  if (const auto verifiers = field.find("verifiers")) {
    program.is_training_dialect = false;
    verifiers->each(
        [&](const Field& one) { program.is_training_dialect |= one.text() == "TRAINING"; });
  }
  graph_module.at("signature").at("input_specs").each([&](const Field& spec) {
    program.inputs.push_back(read_input(spec, source));
  });
  graph_module.at("signature").at("output_specs").each([&](const Field& spec) {
    program.outputs.push_back(read_output(spec, source));
  });
  program.in_spec = parse_tree_spec(call.at("in_spec"));
  program.out_spec = parse_tree_spec(call.at("out_spec"));
  if (const auto names = call.find("forward_arg_names"))
    names->each([&](const Field& one) { program.argument_names.push_back(one.text()); });
  program.ranges = read_ranges(field.at("range_constraints"));
  const Field graph = graph_module.at("graph");
  ValueCheck(graph).check(program.graph);
  check_inputs(graph, program);
  check_outputs(graph, program);
  return program;
}

}  // namespace demi::imported
