#include "demi/imported/input_check.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <utility>

#include "demi/core/error.h"

namespace demi::imported {
namespace {

[[noreturn]] void refuse_input(const std::string& name, const std::string& what,
                               const std::string& seen, const std::string& accepted) {
  refuse({.where = "imported.forward",
          .what = fmt::format("the input {} {}", name, what),
          .seen = seen,
          .accepted = accepted,
          .advice = "give it as the network was exported for, or export it again with "
                    "dynamic_shapes for the sizes that change"});
}

std::string shape_of(const at::Tensor& tensor) {
  return fmt::format("({})", fmt::join(tensor.sizes(), ", "));
}

/// Floating point types may differ: a network in fp16 takes fp16.
bool same_kind(c10::ScalarType a, c10::ScalarType b) {
  return a == b || (c10::isFloatingType(a) && c10::isFloatingType(b));
}

bool equals(const Argument& fixed, const c10::IValue& value) {
  if (fixed.is_none()) return value.isNone();
  if (const auto* truth = fixed.as<bool>()) return value.isBool() && value.toBool() == *truth;
  if (const auto* text = fixed.as<std::string>())
    return value.isString() && value.toStringRef() == *text;
  if (!value.isInt() && !value.isDouble()) return false;
  const double number = value.isInt() ? static_cast<double>(value.toInt()) : value.toDouble();
  if (const auto* integer = fixed.as<std::int64_t>())
    return number == static_cast<double>(*integer);
  const auto* real = fixed.as<double>();
  return real != nullptr && number == *real;
}

std::string text_of(const Argument& fixed) {
  if (fixed.is_none()) return "None";
  if (const auto* truth = fixed.as<bool>()) return *truth ? "True" : "False";
  if (const auto* integer = fixed.as<std::int64_t>()) return fmt::to_string(*integer);
  if (const auto* real = fixed.as<double>()) return fmt::to_string(*real);
  if (const auto* text = fixed.as<std::string>()) return *text;
  return "a constant";
}

}  // namespace

InputCheck::InputCheck(const Program& program) : ranges_(program.ranges) {
  for (const InputSpec& spec : program.inputs) {
    if (spec.kind != InputKind::user && spec.kind != InputKind::fixed) continue;
    Input input{.name = spec.name};
    if (spec.kind == InputKind::fixed) input.fixed = spec.value;
    const auto meta = program.graph.tensors.find(spec.name);
    if (meta != program.graph.tensors.end()) {
      input.is_tensor = true;
      input.dtype = meta->second.dtype;
      for (const Extent& extent : meta->second.sizes) {
        Dimension dimension{.fixed = extent.fixed};
        if (!extent.expression.empty()) {
          dimension.expression = SizeExpression::parse(extent.expression);
          dimension.fixed = -1;
          if (dimension.expression) dimension.symbol = dimension.expression->symbol();
        }
        input.dimensions.push_back(std::move(dimension));
      }
    }
    inputs_.push_back(std::move(input));
  }
}

void InputCheck::operator()(const Values& leaves) const {
  SizeExpression::Symbols symbols;
  for (std::size_t i = 0; i < inputs_.size(); ++i) {
    const Input& input = inputs_[i];
    if (input.fixed && !equals(*input.fixed, leaves[i]))
      refuse_input(fmt::format("{}", i), "was a constant when the network was exported",
                   leaves[i].tagKind(), text_of(*input.fixed));
    if (input.is_tensor) check_tensor(input, leaves[i], symbols);
    if (!input.fixed && !input.is_tensor && !leaves[i].isInt())
      refuse_input(input.name, "is no integer", leaves[i].tagKind(), "an integer");
  }
  check_expressions(leaves, symbols);
  check_ranges(symbols);
}

void InputCheck::check_tensor(const Input& input, const c10::IValue& value,
                              SizeExpression::Symbols& symbols) const {
  if (!value.isTensor() || !value.toTensor().defined())
    refuse_input(input.name, "is no tensor", value.tagKind(), "a tensor");
  const at::Tensor& tensor = value.toTensor();
  if (!same_kind(tensor.scalar_type(), input.dtype))
    refuse_input(input.name, "has another dtype", c10::toString(tensor.scalar_type()),
                 c10::toString(input.dtype));
  if (static_cast<std::size_t>(tensor.dim()) != input.dimensions.size())
    refuse_input(input.name, "has another number of dimensions", shape_of(tensor),
                 fmt::format("{} dimensions", input.dimensions.size()));
  for (std::size_t i = 0; i < input.dimensions.size(); ++i) {
    const Dimension& dimension = input.dimensions[i];
    const std::int64_t size = tensor.size(static_cast<std::int64_t>(i));
    if (dimension.fixed >= 0 && size != dimension.fixed)
      refuse_input(input.name, fmt::format("has another size in dimension {}", i), shape_of(tensor),
                   fmt::to_string(dimension.fixed));
    if (dimension.symbol.empty()) continue;
    const auto [known, is_first] = symbols.emplace(dimension.symbol, size);
    if (!is_first && known->second != size)
      refuse_input(input.name,
                   fmt::format("has another size in dimension {} than an input before", i),
                   shape_of(tensor), fmt::format("{} = {}", dimension.symbol, known->second));
  }
}

void InputCheck::check_expressions(const Values& leaves,
                                   const SizeExpression::Symbols& symbols) const {
  for (std::size_t i = 0; i < inputs_.size(); ++i)
    for (std::size_t d = 0; d < inputs_[i].dimensions.size(); ++d) {
      const Dimension& dimension = inputs_[i].dimensions[d];
      if (!dimension.expression || !dimension.symbol.empty()) continue;
      const std::optional<std::int64_t> size = dimension.expression->value(symbols);
      const at::Tensor& tensor = leaves[i].toTensor();
      if (size && tensor.size(static_cast<std::int64_t>(d)) != *size)
        refuse_input(inputs_[i].name, fmt::format("has another size in dimension {}", d),
                     shape_of(tensor), fmt::format("{} = {}", dimension.expression->text(), *size));
    }
}

void InputCheck::check_ranges(const SizeExpression::Symbols& symbols) const {
  for (const auto& [symbol, size] : symbols) {
    const auto range = ranges_.find(symbol);
    if (range == ranges_.end()) continue;
    const bool too_small = range->second.least > 2 && size < range->second.least;
    if (too_small || size > range->second.most)
      refuse_input("of size " + symbol, "is not in its range", fmt::to_string(size),
                   fmt::format("{} to {}", range->second.least, range->second.most));
  }
}

}  // namespace demi::imported
