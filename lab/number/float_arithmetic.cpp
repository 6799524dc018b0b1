#include "lab/number/float_arithmetic.h"

#include <utility>

namespace demi::number {
namespace {

// The result if one of the operands is infinite, or a divisor is 0, and none is NaN.
Bits without_finite_result(const Format& format, Operation operation, Bits a, Bits b) {
  const Kind left = kind_of(format, a), right = kind_of(format, b);
  const bool negative = is_negative(format, a) != is_negative(format, b);
  const Bits infinity = with_sign(format, overflow(format), negative);
  const Bits nan = quiet_nan(format);
  if (operation == Operation::kMultiply)
    return left == Kind::kZero || right == Kind::kZero ? nan : infinity;
  if (operation == Operation::kDivide) {
    if (left == right) return nan;  // Inf / Inf, 0 / 0
    return right == Kind::kInfinity ? with_sign(format, 0, negative) : infinity;
  }
  if (left == right && negative) return nan;  // Inf - Inf
  return left == Kind::kInfinity ? a : b;
}

}  // namespace

std::optional<ExactNumber> apply(Operation operation, const ExactNumber& a, const ExactNumber& b) {
  switch (operation) {
    case Operation::kAdd:
      return sum(a, b);
    case Operation::kSubtract:
      return sum(a, negated(b));
    case Operation::kMultiply:
      return product(a, b);
    case Operation::kDivide:
      break;
  }
  if (b.is_zero()) return std::nullopt;
  return quotient(a, b);
}

Result apply(const Format& format, Operation operation, Bits a, Bits b) {
  for (const Bits operand : {a, b}) {
    if (kind_of(format, operand) == Kind::kNaN)
      return {.bits = with_sign(format, quiet_nan(format), is_negative(format, operand))};
  }
  if (operation == Operation::kSubtract)
    return apply(format, Operation::kAdd, a, with_sign(format, b, !is_negative(format, b)));
  if (is_finite(format, a) && is_finite(format, b)) {
    auto exact = apply(operation, value_of(format, a), value_of(format, b));
    if (exact) {
      const Bits bits = round_to(format, *exact);
      return {.bits = bits, .exact = std::move(exact)};
    }
  }
  return {.bits = without_finite_result(format, operation, a, b)};
}

}  // namespace demi::number
