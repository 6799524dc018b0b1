#include "demi/imported/identity.h"

#include <fmt/format.h>

#include <map>
#include <string_view>
#include <variant>

#include "demi/core/crc32.h"
#include "demi/core/crc32c.h"

namespace demi::imported {
namespace {

/// A text of a graph, in which values have numbers by their first appearance: the exporter's names
/// are no part of a network.
class GraphText {
 public:
  void add(const Graph& graph) {
    text_ += "{";
    add(graph.inputs);
    for (const Node& node : graph.nodes) {
      text_ += "\n" + node.target;
      for (const NamedArgument& input : node.inputs) {
        text_ += " " + input.name + "=";
        add(input.argument);
      }
      text_ += " ->";
      add(node.outputs);
    }
    text_ += "\n";
    add(graph.outputs);
    text_ += "}";
  }

  void add(const Arguments& arguments) {
    text_ += "(";
    for (const Argument& argument : arguments) {
      add(argument);
      text_ += ",";
    }
    text_ += ")";
  }

  void add(const Argument& argument) {
    std::visit([this](const auto& value) { add_value(value); }, argument.value);
  }

  void add_name(const std::string& name) {
    text_ += fmt::format("%{}", numbers_.emplace(name, numbers_.size()).first->second);
  }

  void add_text(std::string_view text) { text_ += fmt::format("\"{}:{}\"", text.size(), text); }
  void add_number(std::int64_t number) { text_ += fmt::format("{} ", number); }

  const std::string& text() const { return text_; }

 private:
  void add_value(std::monostate) { text_ += "None"; }
  void add_value(const ValueName& value) { add_name(value.name); }
  void add_value(bool value) { text_ += value ? "True" : "False"; }
  void add_value(std::int64_t value) { text_ += fmt::to_string(value); }
  void add_value(double value) { text_ += fmt::format("f{}", value); }
  void add_value(const c10::complex<double>& value) {
    text_ += fmt::format("c{},{}", value.real(), value.imag());
  }
  void add_value(const std::string& value) { add_text(value); }
  void add_value(c10::ScalarType value) { text_ += c10::toString(value); }
  void add_value(c10::MemoryFormat value) { text_ += fmt::format("m{}", static_cast<int>(value)); }
  void add_value(c10::Layout value) { text_ += fmt::format("l{}", static_cast<int>(value)); }
  // The run's device takes its place.
  void add_value(const c10::Device&) { text_ += "device"; }
  void add_value(const Arguments& value) { add(value); }
  void add_value(const SubGraph& value) { add(*value.graph); }
  void add_value(const OperatorName& value) { add_text(value.name); }
  void add_value(const std::map<std::string, Argument>& value) {
    text_ += "<";
    for (const auto& [key, argument] : value) {
      add_text(key);
      add(argument);
    }
    text_ += ">";
  }

  std::string text_;
  std::map<std::string, std::size_t> numbers_;
};

void add_spec(const TreeSpec& spec, GraphText& text) {
  text.add_number(static_cast<int>(spec.kind));
  for (const TreeSpec::Key& key : spec.keys) {
    if (const auto* name = std::get_if<std::string>(&key)) text.add_text(*name);
    if (const auto* number = std::get_if<std::int64_t>(&key)) text.add_number(*number);
  }
  text.add_number(static_cast<std::int64_t>(spec.children.size()));
  for (const TreeSpec& child : spec.children) add_spec(child, text);
}

/// Adds a tensor of the graph's own: dtype, layout and the checksum of its values.
void add_constant(const Archive& archive, const StoredTensor& stored, GraphText& text) {
  text.add_text(c10::toString(stored.meta.dtype));
  for (const auto* extents : {&stored.meta.sizes, &stored.meta.strides}) {
    text.add_number(static_cast<std::int64_t>(extents->size()));
    for (const Extent& extent : *extents) text.add_number(extent.fixed);
  }
  text.add_number(stored.meta.offset.fixed);
  text.add_number(archive.checksum(stored));
}

void add_program(const Archive& archive, const Program& program, GraphText& text) {
  text.add_text(program.name);
  const StoredTensors& constants = archive.constants(program.name);
  for (const InputSpec& input : program.inputs) {
    text.add_number(static_cast<int>(input.kind));
    text.add_name(input.name);
    text.add(input.value);
    const bool is_own =
        input.kind == InputKind::constant || (input.kind == InputKind::buffer && !input.persistent);
    if (input.kind != InputKind::constant) text.add_text(input.target);  // those have numbers
    if (is_own) add_constant(archive, constants.at(input.target), text);
  }
  for (const OutputSpec& output : program.outputs) {
    text.add_number(static_cast<int>(output.kind));
    text.add(output.value);
    if (output.kind == OutputKind::user_input)
      text.add_name(output.target);
    else
      text.add_text(output.target);
  }
  add_spec(program.in_spec, text);
  add_spec(program.out_spec, text);
  text.add(program.graph);
}

}  // namespace

std::string identity_of(const Archive& archive) {
  std::string text;
  for (const Program& program : archive.programs()) {
    GraphText of_one;
    add_program(archive, program, of_one);
    text += of_one.text();
  }
  return fmt::format("{:08x}{:08x}", crc32(text), crc32c(text));
}

}  // namespace demi::imported
