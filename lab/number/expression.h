#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "demi/core/export.h"
#include "lab/number/float_arithmetic.h"
#include "lab/number/number_text.h"

namespace demi::number {

/// The outcome of a rounding.
enum class Outcome {
  kExact,
  kRounded,
  kDenormal,   // below the smallest normal number: fewer bits are left, whether or not it is exact
  kUnderflow,  // became 0
  kOverflow,   // became Inf, NaN in a format without Inf, the largest number in one without both
  kInfinity,   // Inf without a rounding: an operand was Inf, or the divisor 0
  kNaN,
};

/// "exact", "rounded", "denormal", "underflow", "overflow", "inf", "nan".
DEMI_API std::string_view name_of(Outcome outcome);

/// The outcome of rounding `exact`, if it is known, to `bits`.
DEMI_API Outcome outcome_of(const Format& format, Bits bits,
                            const std::optional<ExactNumber>& exact);

/// A rounding on the way to the value of an expression: of a number, or of an operation's result.
struct Step {
  std::string text;   // "0.1", "2048 + 1"
  bool is_operation;  // of two operands
  Result result;
  Outcome outcome;
};

/// Numbers joined by + - * / and parentheses.
class DEMI_API Expression {
 public:
  /// Throws UsageError with the position of what cannot be read.
  explicit Expression(std::string text);

  const std::string& text() const { return text_; }
  /// Whether it is one number, perhaps with signs or parentheses.
  bool is_number() const { return operations_ == 0; }
  /// Whether it is one number that Literal::is_stand_in.
  bool is_stand_in() const { return is_number() && nodes_.front().literal.is_stand_in; }

  /// The value without any rounding; a number over Inf is 0. None if it is not a finite number, or
  /// one of more than 2^19 bits.
  std::optional<ExactNumber> exact_value() const;

  struct Value {
    std::vector<Step> steps;
    Bits bits;
    std::optional<ExactNumber> rounded_from;  // the operand of the last rounding
  };
  /// The value in one format: each number is rounded to it, then each result, in the usual order.
  Value evaluate(const Format& format) const;

 private:
  class Parser;
  struct Node {  // in the order in which a stack machine works
    enum class Kind { kNumber, kNegate, kOperation } kind;
    Literal literal = {};
    std::string text = {};
    Operation operation = {};
  };

  std::string text_;
  std::vector<Node> nodes_;
  std::size_t operations_ = 0;
};

/// The value as messages show it: all digits if they are few, else "about" and 17 of them, which
/// are enough to distinguish two numbers of fp64.
DEMI_API std::string shown(const ExactNumber& x);
/// A format's number as messages show it: "-314.5", "-inf", "nan".
DEMI_API std::string shown(const Format& format, Bits bits);

}  // namespace demi::number
