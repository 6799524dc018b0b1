#include "demi/imported/python_place.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>

namespace demi::imported {
namespace {

/// `  File "nets/net.py", line 15, in forward` as `nets/net.py:15 in forward`.
std::optional<std::string> frame(std::string_view line) {
  constexpr std::string_view kFile = "File \"", kLine = "\", line ";
  const std::size_t file = line.find(kFile), middle = line.find(kLine);
  if (file == std::string_view::npos || middle == std::string_view::npos || middle < file)
    return std::nullopt;
  const std::string_view path = line.substr(file + kFile.size(), middle - file - kFile.size());
  std::string number(line.substr(middle + kLine.size()));
  if (const std::size_t comma = number.find(','); comma != std::string::npos)
    number.erase(comma, 1);
  return fmt::format("{}:{}", path, number);
}

/// <eval_with_key>, <string>: code without a file, whose lines nobody can look up.
bool is_generated(std::string_view frame) { return frame.starts_with('<'); }

bool is_of_pytorch(std::string_view frame) {
  return frame.find("-packages/torch/") != std::string_view::npos || frame.starts_with("torch/");
}

std::string field_or_nothing(const Field& metadata, std::string_view key) {
  const std::optional<Field> field = metadata.find(key);
  return field && field->is_text() ? field->text() : std::string();
}

}  // namespace

std::string python_line(std::string_view stack_trace) {
  std::string innermost, of_user;
  while (!stack_trace.empty()) {
    const std::size_t end = std::min(stack_trace.find('\n'), stack_trace.size());
    const std::optional<std::string> found = frame(stack_trace.substr(0, end));
    if (found && !is_generated(*found)) {
      innermost = *found;
      if (!is_of_pytorch(*found)) of_user = *found;
    }
    stack_trace.remove_prefix(std::min(end + 1, stack_trace.size()));
  }
  return of_user.empty() ? innermost : of_user;
}

std::pair<std::string, std::string> python_module(std::string_view nn_module_stack) {
  const std::size_t last = nn_module_stack.rfind(';');
  if (last != std::string_view::npos) nn_module_stack.remove_prefix(last + 1);
  const std::size_t first = nn_module_stack.find(','), second = nn_module_stack.rfind(',');
  if (first == std::string_view::npos || first == second) return {};
  std::string_view path = nn_module_stack.substr(first + 1, second - first - 1);
  // Strict export writes L['self'].block.conv.
  constexpr std::string_view kSelf = "L['self']";
  if (path.starts_with(kSelf)) path.remove_prefix(kSelf.size());
  if (path.starts_with('.')) path.remove_prefix(1);
  path = path.substr(0, path.find('@'));  // "conv@1": the second call of one module
  if (path.starts_with("_empty_nn_module_stack")) return {};
  return {std::string(path), std::string(nn_module_stack.substr(second + 1))};
}

PythonPlace read_python_place(const Field& metadata) {
  auto [module, type] = python_module(field_or_nothing(metadata, "nn_module_stack"));
  return {.line = python_line(field_or_nothing(metadata, "stack_trace")),
          .module = std::move(module),
          .type = std::move(type)};
}

}  // namespace demi::imported
