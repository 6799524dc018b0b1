#include "demi/imported/graph_reader.h"

#include <fmt/format.h>

#include <optional>
#include <utility>

#include "demi/imported/python_place.h"

namespace demi::imported {
namespace {

constexpr int kDeepestGraph = 32;

Graph read_graph_at(const Field& field, Source& source, int depth);

c10::MemoryFormat read_memory_format(const Field& field) {
  switch (field.get<std::int64_t>()) {
    case 1:
      return c10::MemoryFormat::Contiguous;
    case 2:
      return c10::MemoryFormat::ChannelsLast;
    case 3:
      return c10::MemoryFormat::ChannelsLast3d;
    case 4:
      return c10::MemoryFormat::Preserve;
    default:
      field.refuse("is no memory format", "1 to 4");
  }
}

c10::Layout read_layout(const Field& field) {
  if (field.get<std::int64_t>() != 7) field.refuse("is not dense", "7, a strided layout");
  return c10::Layout::Strided;
}

c10::Device read_device(const Field& field) {
  const std::string& type = field.at("type").text();
  // An index that the machine lacks does not matter: the run's device takes its place.
  if (type == "cpu") return c10::Device(c10::kCPU);
  if (type == "cuda") return c10::Device(c10::kCUDA);
  if (type == "meta") return c10::Device(c10::kMeta);
  field.refuse("is a device that is not supported", "cpu or cuda");
}

Extent read_extent(const Field& field) {
  const auto [kind, value] = field.only();
  if (kind == "as_int") return {.fixed = value.get<std::int64_t>()};
  if (kind == "as_expr") return {.expression = value.at("expr_str").text()};
  field.refuse("is no size", "as_int or as_expr");
}

std::vector<Extent> read_extents(const Field& field) {
  std::vector<Extent> extents;
  field.each([&](const Field& one) { extents.push_back(read_extent(one)); });
  return extents;
}

class ArgumentReader {
 public:
  ArgumentReader(Source& source, int depth) : source_(source), depth_(depth) {}

  Argument operator()(const Field& field) const {
    const auto [kind, value] = field.only();
    if (kind == "as_none") return {};
    if (kind == "as_tensor" || kind == "as_custom_obj") return named(value.at("name"));
    if (kind == "as_optional_tensor") return (*this)(value);
    if (kind.starts_with("as_sym_") && kind.ends_with("s"))
      return list(value, [this](const Field& one) { return symbolic(one); });
    if (kind.starts_with("as_sym_")) return symbolic(value);
    if (std::optional<Argument> plain = constant(kind, value)) return std::move(*plain);
    if (std::optional<Argument> many = list_of(kind, value)) return std::move(*many);
    if (kind == "as_graph") return graph(value);
    if (kind == "as_operator") return {OperatorName{value.text()}};
    if (kind == "as_string_to_argument") return dictionary(value);
    field.refuse("is an argument of an unknown kind", "what schema 8 of PyTorch's export has");
  }

 private:
  static Argument named(const Field& name) { return {ValueName{name.text()}}; }

  static Argument symbolic(const Field& field) {
    const auto [kind, value] = field.only();
    if (kind == "as_name") return named(value);
    if (std::optional<Argument> plain = constant(kind, value)) return std::move(*plain);
    field.refuse("is no number of a shape", "as_name, as_int, as_float or as_bool");
  }

  static std::optional<Argument> constant(std::string_view kind, const Field& value) {
    if (kind == "as_int") return Argument{value.get<std::int64_t>()};
    if (kind == "as_float") return Argument{number_of(value)};
    if (kind == "as_bool") return Argument{value.get<bool>()};
    if (kind == "as_string") return Argument{value.text()};
    if (kind == "as_scalar_type") return Argument{read_dtype(value)};
    if (kind == "as_memory_format") return Argument{read_memory_format(value)};
    if (kind == "as_layout") return Argument{read_layout(value)};
    if (kind == "as_device") return Argument{read_device(value)};
    if (kind == "as_complex")
      return Argument{
          c10::complex<double>(number_of(value.at("real")), number_of(value.at("imag")))};
    return std::nullopt;
  }

  template <class Read>
  static Argument list(const Field& field, const Read& read) {
    Arguments all;
    field.each([&](const Field& one) { all.push_back(read(one)); });
    return {std::move(all)};
  }

  std::optional<Argument> list_of(std::string_view kind, const Field& value) const {
    if (kind == "as_ints") return list(value, [](const Field& one) { return integer(one); });
    if (kind == "as_floats") return list(value, [](const Field& one) { return floating(one); });
    if (kind == "as_bools")
      return list(value, [](const Field& one) { return Argument{one.get<bool>()}; });
    if (kind == "as_strings")
      return list(value, [](const Field& one) { return Argument{one.text()}; });
    if (kind == "as_tensors") return list(value, by_name);
    if (kind == "as_optional_tensors")
      return list(value, [this](const Field& one) { return (*this)(one); });
    if (kind == "as_nested_tensors")
      return list(value, [](const Field& one) { return list(one, by_name); });
    if (kind == "as_int_lists")
      return list(value, [](const Field& one) { return list(one, integer); });
    if (kind == "as_float_lists")
      return list(value, [](const Field& one) { return list(one, floating); });
    return std::nullopt;
  }

  static Argument integer(const Field& one) { return {one.get<std::int64_t>()}; }
  static Argument floating(const Field& one) { return {number_of(one)}; }
  static Argument by_name(const Field& one) { return named(one.at("name")); }

  Argument graph(const Field& value) const {
    return {SubGraph{value.at("name").text(), std::make_shared<const Graph>(read_graph_at(
                                                  value.at("graph"), source_, depth_ + 1))}};
  }

  Argument dictionary(const Field& value) const {
    std::map<std::string, Argument> entries;
    value.members([&](const std::string& name, const Field& one) {
      entries.emplace(name, ArgumentReader(source_, depth_ + 1)(one));
    });
    return {std::move(entries)};
  }

  Source& source_;
  int depth_;
};

Node read_node(const Field& field, Source& source, int depth) {
  Node node{.target = field.at("target").text()};
  if (const std::optional<Field> name = field.find("name")) node.name = name->text();
  const std::string outside =
      std::exchange(source.inside, fmt::format("node {} ({})", node.name, node.target));
  const ArgumentReader read(source, depth);
  field.at("inputs").each([&](const Field& input) {
    node.inputs.push_back({input.at("name").text(), read(input.at("arg"))});
  });
  field.at("outputs").each([&](const Field& output) { node.outputs.push_back(read(output)); });
  if (const std::optional<Field> metadata = field.find("metadata"))
    node.place = read_python_place(*metadata);
  source.inside = outside;
  return node;
}

Graph read_graph_at(const Field& field, Source& source, int depth) {
  if (depth > kDeepestGraph) field.refuse("is nested too deep", "at most 32 graphs");
  Graph graph;
  const ArgumentReader read(source, depth);
  field.at("inputs").each([&](const Field& input) { graph.inputs.push_back(read(input)); });
  field.at("outputs").each([&](const Field& output) { graph.outputs.push_back(read(output)); });
  field.at("nodes").each(
      [&](const Field& node) { graph.nodes.push_back(read_node(node, source, depth)); });
  const Field tensors = field.at("tensor_values");
  for (const Argument& input : graph.inputs)
    if (const auto* value = input.as<ValueName>())
      if (const std::optional<Field> meta = tensors.find(value->name))
        graph.tensors.emplace(value->name, read_tensor_meta(*meta));
  for (const Argument& output : graph.outputs)
    if (const auto* value = output.as<ValueName>())
      if (const std::optional<Field> meta = tensors.find(value->name))
        graph.output_sizes.emplace(value->name, read_extents((*meta).at("sizes")));
  return graph;
}

}  // namespace

c10::ScalarType read_dtype(const Field& field) {
  using c10::ScalarType;
  // The schema's numbers are its own (schema.py, ScalarType).
  static const std::map<std::int64_t, ScalarType> kTypes{
      {1, ScalarType::Byte},           {2, ScalarType::Char},
      {3, ScalarType::Short},          {4, ScalarType::Int},
      {5, ScalarType::Long},           {6, ScalarType::Half},
      {7, ScalarType::Float},          {8, ScalarType::Double},
      {9, ScalarType::ComplexHalf},    {10, ScalarType::ComplexFloat},
      {11, ScalarType::ComplexDouble}, {12, ScalarType::Bool},
      {13, ScalarType::BFloat16},      {28, ScalarType::UInt16},
      {29, ScalarType::Float8_e4m3fn}, {30, ScalarType::Float8_e5m2},
      {34, ScalarType::UInt32},        {35, ScalarType::UInt64},
  };
  const auto found = kTypes.find(field.get<std::int64_t>());
  if (found == kTypes.end()) field.refuse("is no dtype that is known here", "1 to 13, 28 to 35");
  return found->second;
}

TensorMeta read_tensor_meta(const Field& field) {
  read_layout(field.at("layout"));
  TensorMeta meta{.dtype = read_dtype(field.at("dtype")),
                  .sizes = read_extents(field.at("sizes")),
                  .strides = read_extents(field.at("strides")),
                  .offset = read_extent(field.at("storage_offset")),
                  .requires_grad = field.at("requires_grad").get<bool>()};
  if (meta.sizes.size() != meta.strides.size() || meta.sizes.size() > 64)
    field.refuse("has other dimensions than strides, or too many", "at most 64, one stride each");
  return meta;
}

Argument read_argument(const Field& field, Source& source) {
  return ArgumentReader(source, 0)(field);
}

Graph read_graph(const Field& field, Source& source) { return read_graph_at(field, source, 0); }

}  // namespace demi::imported
