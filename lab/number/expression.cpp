#include "lab/number/expression.h"

#include <fmt/format.h>

#include <cstdlib>
#include <utility>

namespace demi::number {
namespace {

constexpr std::size_t kMostDepth = 200;      // of parentheses
constexpr std::int64_t kMostBits = 1 << 19;  // of an exact value

Bits round_literal(const Format& format, const Literal& literal) {
  if (literal.kind == Kind::kNaN) return quiet_nan(format);
  if (literal.kind == Kind::kInfinity) return overflow(format);
  return round_to(format, literal.value);
}

std::int64_t bits_needed(const ExactNumber& x) {
  return x.numerator.bit_width() + x.denominator.bit_width() + std::abs(x.exponent);
}

template <class Operand>
std::pair<Operand, Operand> pop_two(std::vector<Operand>& stack) {
  Operand right = std::move(stack.back());
  stack.pop_back();
  Operand left = std::move(stack.back());
  stack.pop_back();
  return {std::move(left), std::move(right)};
}

std::string_view sign_of(Operation operation) {
  switch (operation) {
    case Operation::kAdd:
      return "+";
    case Operation::kSubtract:
      return "-";
    case Operation::kMultiply:
      return "×";
    case Operation::kDivide:
      break;
  }
  return "/";
}

// The number as text beside an operator.
std::string as_operand(const Format& format, Bits bits, bool is_right) {
  const std::string text = shown(format, bits);
  return is_right && is_negative(format, bits) ? "(" + text + ")" : text;
}

}  // namespace

std::string_view name_of(Outcome outcome) {
  constexpr std::string_view kNames[] = {"exact",    "rounded", "denormal", "underflow",
                                         "overflow", "inf",     "nan"};
  return kNames[static_cast<std::size_t>(outcome)];
}

Outcome outcome_of(const Format& format, Bits bits, const std::optional<ExactNumber>& exact) {
  const Kind kind = kind_of(format, bits);
  if (!is_finite(format, bits)) {
    if (exact) return Outcome::kOverflow;
    return kind == Kind::kInfinity ? Outcome::kInfinity : Outcome::kNaN;
  }
  if (!format.has_nan && exact && is_beyond(format, *exact)) return Outcome::kOverflow;
  if (kind == Kind::kZero && exact && !exact->is_zero()) return Outcome::kUnderflow;
  if (kind == Kind::kSubnormal) return Outcome::kDenormal;
  const bool is_exact = !exact || error_in_ulp(format, bits, *exact) == 0;
  return is_exact ? Outcome::kExact : Outcome::kRounded;
}

// expression = term { (+|-) term }; term = factor { (*|/) factor }; factor = { + | - } (number or
// parentheses).
class Expression::Parser {
 public:
  explicit Parser(Expression& expression) : result_(expression), text_(expression.text_) {}

  void parse() {
    read_sum();
    if (at_ < text_.size()) refuse("an operator is expected");
  }

 private:
  [[noreturn]] void refuse(std::string_view what) const { refuse_number(text_, at_, what); }

  bool skip(char c) {
    skip_blanks();
    const bool found = at_ < text_.size() && text_[at_] == c;
    at_ += found;
    return found;
  }

  void skip_blanks() {
    while (at_ < text_.size() && std::string_view(" \t\r\n").find(text_[at_]) != std::string::npos)
      ++at_;
  }

  void add(Operation operation) {
    result_.nodes_.push_back({.kind = Node::Kind::kOperation, .operation = operation});
    ++result_.operations_;
  }

  void read_sum() {
    read_product();
    for (;;) {
      if (skip('+')) {
        read_product();
        add(Operation::kAdd);
      } else if (skip('-')) {
        read_product();
        add(Operation::kSubtract);
      } else {
        return;
      }
    }
  }

  void read_product() {
    read_factor();
    for (;;) {
      if (skip('*')) {
        read_factor();
        add(Operation::kMultiply);
      } else if (skip('/')) {
        read_factor();
        add(Operation::kDivide);
      } else {
        return;
      }
    }
  }

  void read_factor() {
    bool negative = false;
    for (;;) {
      if (skip('-')) {
        negative = !negative;
      } else if (!skip('+')) {
        break;
      }
    }
    if (skip('(')) {
      if (++depth_ > kMostDepth) refuse("more than 200 parentheses are open");
      read_sum();
      if (!skip(')')) refuse("a closing parenthesis is missing");
      --depth_;
    } else {
      const std::size_t begin = at_;
      Node number{.kind = Node::Kind::kNumber, .literal = read_number(text_, at_)};
      number.text = text_.substr(begin, at_ - begin);
      result_.nodes_.push_back(std::move(number));
    }
    if (negative) result_.nodes_.push_back({.kind = Node::Kind::kNegate});
    skip_blanks();
  }

  Expression& result_;
  const std::string& text_;
  std::size_t at_ = 0, depth_ = 0;
};

Expression::Expression(std::string text) : text_(std::move(text)) { Parser(*this).parse(); }

std::optional<ExactNumber> Expression::exact_value() const {
  std::vector<std::optional<ExactNumber>> stack;  // none: an infinity, which may be divided by
  for (const Node& node : nodes_) {
    if (node.kind == Node::Kind::kNegate) {
      if (stack.back()) stack.back()->negative = !stack.back()->negative;
    } else if (node.kind == Node::Kind::kNumber) {
      const Literal& literal = node.literal;
      if (literal.kind == Kind::kNaN || (literal.is_stand_in && !is_number())) return std::nullopt;
      const bool is_infinite = literal.kind == Kind::kInfinity;
      stack.push_back(is_infinite ? std::nullopt : std::optional(literal.value));
    } else {
      const auto [left, right] = pop_two(stack);
      if (!left || (!right && node.operation != Operation::kDivide)) return std::nullopt;
      if (right && bits_needed(*left) + bits_needed(*right) > kMostBits) return std::nullopt;
      stack.push_back(right ? apply(node.operation, *left, *right) : ExactNumber());
      if (!stack.back()) return std::nullopt;
    }
  }
  return stack.back();
}

Expression::Value Expression::evaluate(const Format& format) const {
  std::vector<Step> steps;
  std::vector<Result> stack;
  const auto record = [&](std::string text, bool is_operation, Result result) {
    const Outcome outcome = outcome_of(format, result.bits, result.exact);
    steps.push_back({std::move(text), is_operation, result, outcome});
    stack.push_back(std::move(result));
  };
  for (const Node& node : nodes_) {
    if (node.kind == Node::Kind::kNegate) {
      Result& last = stack.back();
      last.bits = with_sign(format, last.bits, !is_negative(format, last.bits));
      if (last.exact) last.exact->negative = !last.exact->negative;
    } else if (node.kind == Node::Kind::kNumber) {
      Result result{.bits = round_literal(format, node.literal)};
      if (node.literal.kind == Kind::kZero || node.literal.kind == Kind::kNormal)
        result.exact = node.literal.value;
      record(node.text, false, std::move(result));
    } else {
      const auto [left, right] = pop_two(stack);
      record(fmt::format("{} {} {}", as_operand(format, left.bits, false), sign_of(node.operation),
                         as_operand(format, right.bits, true)),
             true, apply(format, node.operation, left.bits, right.bits));
    }
  }
  return {std::move(steps), stack.back().bits, std::move(stack.back().exact)};
}

std::string shown(const ExactNumber& x) {
  constexpr int kMostDigits = 18, kDigits = 17;
  const RoundedDecimal all = round_to_decimal(x, kMostDigits);
  return all.is_exact ? all.text : "about " + round_to_decimal(x, kDigits).text;
}

std::string shown(const Format& format, Bits bits) {
  const std::string sign = is_negative(format, bits) ? "-" : "";
  if (kind_of(format, bits) == Kind::kNaN) return "nan";
  if (kind_of(format, bits) == Kind::kInfinity) return sign + "inf";
  return shown(value_of(format, bits));
}

}  // namespace demi::number
