#include "demi/imported/fill_values.h"

#include <ATen/ops/clamp.h>
#include <ATen/ops/isinf.h>
#include <ATen/ops/where.h>
#include <c10/util/BFloat16.h>
#include <c10/util/Float8_e4m3fn.h>
#include <c10/util/Float8_e5m2.h>
#include <c10/util/Half.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>
#include <string>
#include <string_view>

#include "demi/imported/wrapped_number.h"

namespace demi::imported {
namespace {

using c10::IValue;

struct Fill {
  std::string_view op, argument;
};

// Operations of native_functions.yaml that fill with a number. Operations that compute with one are
// left out: the dtype may hold their result.
constexpr Fill kFills[] = {
    {"aten::masked_fill", "value"},
    {"aten::masked_fill_", "value"},
    {"aten::fill", "value"},
    {"aten::fill_", "value"},
    {"aten::full_like", "fill_value"},
    {"aten::new_full", "fill_value"},
    {"aten::where", "self"},
    {"aten::where", "other"},
    {"aten::clamp", "min"},
    {"aten::clamp", "max"},
    {"aten::clamp_", "min"},
    {"aten::clamp_", "max"},
    {"aten::clamp_min", "min"},
    {"aten::clamp_min_", "min"},
    {"aten::clamp_max", "max"},
    {"aten::clamp_max_", "max"},
    {"aten::clip", "min"},
    {"aten::clip", "max"},
    {"aten::hardtanh", "min_val"},
    {"aten::hardtanh", "max_val"},
    {"aten::hardtanh_", "min_val"},
    {"aten::hardtanh_", "max_val"},
    {"aten::threshold", "value"},
    {"aten::threshold_", "value"},
    {"aten::index_fill", "value"},
    {"aten::index_fill_", "value"},
    {"aten::scatter", "value"},
    {"aten::scatter_", "value"},
    {"aten::pad", "value"},
    {"aten::constant_pad_nd", "value"},
    {"aten::nan_to_num", "posinf"},
    {"aten::nan_to_num", "neginf"},
    {"aten::nan_to_num_", "posinf"},
    {"aten::nan_to_num_", "neginf"},
};

std::optional<double> largest(c10::ScalarType dtype) {
  switch (dtype) {
    case c10::ScalarType::Float:
      return std::numeric_limits<float>::max();
    case c10::ScalarType::Half:
      return std::numeric_limits<c10::Half>::max();
    case c10::ScalarType::BFloat16:
      return std::numeric_limits<c10::BFloat16>::max();
    case c10::ScalarType::Float8_e4m3fn:
      return std::numeric_limits<c10::Float8_e4m3fn>::max();
    case c10::ScalarType::Float8_e5m2:
      return std::numeric_limits<c10::Float8_e5m2>::max();
    default:
      return std::nullopt;
  }
}

double limited(double number, double most) {
  return std::isfinite(number) ? std::clamp(number, -most, most) : number;
}

IValue limited(const IValue& value, c10::ScalarType dtype, double most) {
  if (value.isDouble()) return limited(value.toDouble(), most);
  if (value.isInt() && std::abs(static_cast<double>(value.toInt())) > most)
    return limited(static_cast<double>(value.toInt()), most);
  if (!value.isTensor() || !value.toTensor().defined()) return value;
  const at::Tensor& tensor = value.toTensor();
  if (tensor.dim() > 0 || !tensor.is_floating_point() || tensor.scalar_type() == dtype)
    return value;
  if (tensor.unsafeGetTensorImpl()->is_wrapped_number())
    return wrapped_number(limited(tensor.item<double>(), most));
  return at::where(tensor.isinf(), tensor, tensor.clamp(-most, most));
}

}  // namespace

void FillValues::operator()(torch::jit::Stack& operands) const {
  if (places.empty()) return;
  std::optional<c10::ScalarType> type;
  if (dtype >= 0 && operands[static_cast<std::size_t>(dtype)].isInt())
    type = operands[static_cast<std::size_t>(dtype)].toScalarType();
  for (const IValue& operand : operands)
    if (!type && operand.isTensor() && operand.toTensor().defined() &&
        operand.toTensor().dim() > 0 && operand.toTensor().is_floating_point())
      type = operand.toTensor().scalar_type();
  const std::optional<double> most = type ? largest(*type) : std::nullopt;
  if (!most) return;
  for (const std::int32_t place : places) {
    IValue& value = operands[static_cast<std::size_t>(place)];
    value = limited(value, *type, *most);
  }
}

FillValues fill_values(const c10::FunctionSchema& schema) {
  FillValues fills;
  for (const Fill& fill : kFills)
    if (fill.op == schema.name())
      if (const auto place = schema.argumentIndexWithName(std::string(fill.argument)))
        fills.places.push_back(*place);
  if (!fills.places.empty()) fills.dtype = schema.argumentIndexWithName("dtype").value_or(-1);
  return fills;
}

}  // namespace demi::imported
