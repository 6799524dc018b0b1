#include "demi/imported/outputs.h"

#include <fmt/format.h>

#include <charconv>
#include <system_error>
#include <vector>

namespace demi::imported {
namespace {

using c10::IValue;

void add_tensors(const IValue& value, std::vector<at::Tensor>& tensors) {
  if (value.isTensor()) tensors.push_back(value.toTensor());
  if (value.isTuple())
    for (const IValue& element : value.toTupleRef().elements()) add_tensors(element, tensors);
  if (value.isList())
    for (const IValue& element : value.toListRef()) add_tensors(element, tensors);
  if (value.isGenericDict())
    for (const auto& entry : value.toGenericDict()) add_tensors(entry.value(), tensors);
}

std::vector<at::Tensor> tensors_of(const IValue& value) {
  std::vector<at::Tensor> tensors;
  add_tensors(value, tensors);
  return tensors;
}

std::optional<at::Tensor> only(const std::vector<at::Tensor>& tensors) {
  return tensors.size() == 1 ? std::optional(tensors[0]) : std::nullopt;
}

std::string text_of(const IValue& key) {
  return key.isString() ? key.toStringRef() : key.isInt() ? std::to_string(key.toInt()) : "";
}

std::optional<std::size_t> number_of(const std::string& text) {
  std::size_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return number;
}

}  // namespace

std::optional<at::Tensor> find_output(const IValue& result, const std::string& output) {
  if (output.empty()) return only(tensors_of(result));
  if (result.isGenericDict())
    for (const auto& entry : result.toGenericDict())
      if (text_of(entry.key()) == output) return only(tensors_of(entry.value()));
  const std::vector<at::Tensor> tensors = tensors_of(result);
  const std::optional<std::size_t> number = number_of(output);
  return number && *number < tensors.size() ? std::optional(tensors[*number]) : std::nullopt;
}

std::string output_names(const IValue& result) {
  std::string names;
  if (result.isGenericDict())
    for (const auto& entry : result.toGenericDict())
      if (only(tensors_of(entry.value()))) names += text_of(entry.key()) + ", ";
  const std::size_t count = tensors_of(result).size();
  if (count == 0) return names + "no tensor";
  return names + (count == 1 ? "0" : fmt::format("0 to {}", count - 1));
}

}  // namespace demi::imported
