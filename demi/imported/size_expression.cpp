#include "demi/imported/size_expression.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <charconv>
#include <utility>

#include "demi/imported/symbolic.h"

namespace demi::imported {

/// Recursive descent: NAME(argument, ..., key=value), 'text', or an integer.
class ExpressionParser {
 public:
  explicit ExpressionParser(std::string_view text) : rest_(text) {}

  std::optional<SizeExpression> whole() {
    std::optional<SizeExpression> result = expression(0);
    return rest_.empty() ? std::move(result) : std::nullopt;
  }

 private:
  static constexpr int kDeepest = 64;

  bool skip(char c) {
    while (rest_.starts_with(' ')) rest_.remove_prefix(1);
    if (!rest_.starts_with(c)) return false;
    rest_.remove_prefix(1);
    return true;
  }

  std::string_view word() {
    while (rest_.starts_with(' ')) rest_.remove_prefix(1);
    std::size_t end = 0;
    while (end < rest_.size() && (std::isalnum(static_cast<unsigned char>(rest_[end])) != 0 ||
                                  rest_[end] == '_' || rest_[end] == '.'))
      ++end;
    const std::string_view found = rest_.substr(0, end);
    rest_.remove_prefix(end);
    return found;
  }

  std::optional<std::int64_t> integer() {
    std::int64_t number = 0;
    const bool negative = skip('-');
    const std::string_view digits = word();
    const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), number);
    if (error != std::errc() || end != digits.data() + digits.size() || digits.empty())
      return std::nullopt;
    return negative ? -number : number;
  }

  std::optional<std::string> quoted() {
    const char quote = rest_.empty() ? ' ' : rest_.front();
    if ((quote != '\'' && quote != '"') || rest_.find(quote, 1) == std::string_view::npos)
      return std::nullopt;
    const std::size_t end = rest_.find(quote, 1);
    std::string text(rest_.substr(1, end - 1));
    rest_.remove_prefix(end + 1);
    return text;
  }

  std::optional<SizeExpression> expression(int depth) {
    if (depth > kDeepest) return std::nullopt;
    SizeExpression result;
    result.kind_ = word();
    if (result.kind_.empty() || !skip('(')) return std::nullopt;
    if (result.kind_ == "Integer") {
      const std::optional<std::int64_t> number = integer();
      if (!number || !skip(')')) return std::nullopt;
      result.number_ = *number;
      return result;
    }
    if (result.kind_ == "Symbol") {
      std::optional<std::string> name = quoted();
      if (!name) return std::nullopt;
      result.name_ = std::move(*name);
      while (skip(','))  // positive=True
        if (word().empty() || !skip('=') || word().empty()) return std::nullopt;
      return skip(')') ? std::optional(std::move(result)) : std::nullopt;
    }
    do {
      std::optional<SizeExpression> argument = expression(depth + 1);
      if (!argument) return std::nullopt;
      result.arguments_.push_back(std::move(*argument));
    } while (skip(','));
    return skip(')') ? std::optional(std::move(result)) : std::nullopt;
  }

  std::string_view rest_;
};

namespace {

using Number = std::optional<std::int64_t>;

Number fold(std::string_view kind, std::int64_t a, std::int64_t b) {
  std::int64_t result = 0;
  if (kind == "Add") return __builtin_add_overflow(a, b, &result) ? Number() : result;
  if (kind == "Mul") return __builtin_mul_overflow(a, b, &result) ? Number() : result;
  if (kind == "Max") return std::max(a, b);
  if (kind == "Min") return std::min(a, b);
  if (kind == "FloorDiv") return floor_divide(a, b);
  if (kind == "CleanDiv") return floor_divide(a, b);
  if (kind == "Mod" || kind == "PythonMod") return python_mod(a, b);
  if (kind == "Pow") return integer_power(a, b);
  return std::nullopt;
}

}  // namespace

std::optional<SizeExpression> SizeExpression::parse(std::string_view text) {
  return ExpressionParser(text).whole();
}

std::optional<std::int64_t> SizeExpression::value(const Symbols& symbols) const {
  if (kind_ == "Integer") return number_;
  if (kind_ == "Symbol") {
    const auto found = symbols.find(name_);
    return found == symbols.end() ? std::nullopt : std::optional(found->second);
  }
  Number result;
  for (const SizeExpression& argument : arguments_) {
    const Number next = argument.value(symbols);
    if (!next) return std::nullopt;
    result = &argument == arguments_.data() ? next : fold(kind_, *result, *next);
    if (!result) return std::nullopt;
  }
  return arguments_.size() > 1 ? result : std::nullopt;
}

std::string SizeExpression::text() const {
  if (kind_ == "Integer") return std::to_string(number_);
  if (kind_ == "Symbol") return name_;
  const std::string_view between = kind_ == "Mul" ? "*" : kind_ == "Add" ? " + " : ", ";
  std::string all;
  for (const SizeExpression& argument : arguments_)
    all.append(all.empty() ? "" : between).append(argument.text());
  return kind_ == "Mul" || kind_ == "Add" ? all : fmt::format("{}({})", kind_, all);
}

}  // namespace demi::imported
