#include "demi/imported/operands.h"

#include <ATen/core/List.h>
#include <ATen/core/jit_type.h>

#include <algorithm>
#include <utility>

#include "demi/imported/wrapped_number.h"

namespace demi::imported {
namespace {

using c10::IValue;
using c10::TypeKind;

std::optional<Operand> constant(IValue value) {
  return Operand{.kind = Operand::Kind::constant, .constant = std::move(value)};
}

bool is_number(const Argument& argument) {
  return argument.as<bool>() != nullptr || argument.as<std::int64_t>() != nullptr ||
         argument.as<double>() != nullptr || argument.as<c10::complex<double>>() != nullptr;
}

c10::Scalar scalar_of(const Argument& argument) {
  if (const auto* truth = argument.as<bool>()) return *truth;
  if (const auto* integer = argument.as<std::int64_t>()) return *integer;
  if (const auto* real = argument.as<double>()) return *real;
  return *argument.as<c10::complex<double>>();
}

c10::TypePtr without_optional(c10::TypePtr type) {
  while (type->kind() == TypeKind::OptionalType)
    type = type->expectRef<c10::OptionalType>().getElementType();
  return type;
}

/// A number, text or flag as it stands in the file; dtypes and formats as LibTorch's numbers.
std::optional<IValue> plain_value(const Argument& argument) {
  if (argument.is_none()) return IValue();
  if (is_number(argument)) return IValue(scalar_of(argument));
  if (const auto* text = argument.as<std::string>()) return IValue(*text);
  if (const auto* dtype = argument.as<c10::ScalarType>())
    return IValue(static_cast<std::int64_t>(*dtype));
  if (const auto* format = argument.as<c10::MemoryFormat>())
    return IValue(static_cast<std::int64_t>(*format));
  if (const auto* layout = argument.as<c10::Layout>())
    return IValue(static_cast<std::int64_t>(*layout));
  return std::nullopt;
}

std::optional<Operand> number_for(const Argument& argument, const c10::Type& type) {
  const c10::Scalar number = scalar_of(argument);
  switch (type.kind()) {
    case TypeKind::TensorType:
      return constant(wrapped_number(number));
    case TypeKind::FloatType:
      if (number.isComplex()) return std::nullopt;
      return constant(number.toDouble());
    case TypeKind::ComplexType:
      return constant(number.toComplexDouble());
    case TypeKind::IntType:
    case TypeKind::SymIntType:
      if (!number.isIntegral(/*includeBool=*/true)) return std::nullopt;
      return constant(number.toLong());
    case TypeKind::BoolType:
      if (!number.isBoolean()) return std::nullopt;
      return constant(number.toBool());
    default:
      return constant(IValue(number));  // a Scalar, or any
  }
}

std::optional<Operand> one(const Argument& argument, const c10::TypePtr& type, int length,
                           const FindSlot& slot);

/// A list whose elements are all constants is a constant, made once.
std::optional<Operand> list(const Arguments& all, const c10::TypePtr& element_type,
                            const FindSlot& slot) {
  Operand result{.kind = Operand::Kind::list, .element_type = element_type};
  for (const Argument& argument : all) {
    std::optional<Operand> element = one(argument, element_type, 0, slot);
    if (!element) return std::nullopt;
    result.elements.push_back(std::move(*element));
  }
  const bool is_constant = std::ranges::all_of(result.elements, [](const Operand& element) {
    return element.kind == Operand::Kind::constant;
  });
  if (!is_constant) return result;
  c10::impl::GenericList values(element_type);
  for (const Operand& element : result.elements) values.push_back(element.constant);
  return constant(values);
}

std::optional<Operand> one(const Argument& argument, const c10::TypePtr& declared, int length,
                           const FindSlot& slot) {
  const bool may_be_none = declared->kind() == TypeKind::OptionalType;
  const c10::TypePtr type = without_optional(declared);
  if (argument.is_none()) {
    if (!may_be_none && type->kind() != TypeKind::TensorType) return std::nullopt;
    return constant(IValue());
  }
  if (type->kind() == TypeKind::ListType) {
    c10::TypePtr element = type->expectRef<c10::ListType>().getElementType();
    // Lists of symbolic integers are lists of integers to a boxed call.
    if (element->kind() == TypeKind::SymIntType) element = c10::IntType::get();
    if (const auto* all = argument.as<Arguments>()) return list(*all, element, slot);
    if (argument.as<ValueName>() != nullptr && length == 0)
      return Operand{.kind = Operand::Kind::slot, .slot = slot(argument.as<ValueName>()->name)};
    // "stride=1" means that number for every dimension.
    return list(Arguments(static_cast<std::size_t>(std::max(length, 1)), argument), element, slot);
  }
  if (const auto* value = argument.as<ValueName>())
    return Operand{.kind = type->kind() == TypeKind::TensorType ? Operand::Kind::number_or_tensor
                                                                : Operand::Kind::slot,
                   .slot = slot(value->name)};
  if (argument.as<c10::Device>() != nullptr)
    return Operand{.kind = Operand::Kind::slot, .slot = PreparedGraph::kDeviceSlot};
  if (is_number(argument)) return number_for(argument, *type);
  std::optional<IValue> value = plain_value(argument);
  if (!value) return std::nullopt;
  if (value->isString() != (type->kind() == TypeKind::StringType)) return std::nullopt;
  return constant(std::move(*value));
}

}  // namespace

std::optional<Operand> operand_of(const Argument& argument, const c10::Argument& schema,
                                  const FindSlot& slot) {
  return one(argument, schema.type(), static_cast<int>(schema.N().value_or(0)), slot);
}

std::optional<Operand> plain_operand(const Argument& argument, const FindSlot& slot) {
  if (const auto* value = argument.as<ValueName>())
    return Operand{.kind = Operand::Kind::slot, .slot = slot(value->name)};
  if (const auto* all = argument.as<Arguments>()) return list(*all, c10::AnyType::get(), slot);
  if (std::optional<IValue> value = plain_value(argument)) return constant(std::move(*value));
  return std::nullopt;
}

}  // namespace demi::imported
