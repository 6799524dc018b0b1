#pragma once

#include <optional>
#include <string>
#include <vector>

#include "demi/core/export.h"
#include "lab/number/expression.h"
#include "lab/number/float_bits.h"

namespace demi::number {

/// An expression's value in a format.
struct Explanation {
  const Format* format;
  std::vector<Step> steps;                  // a single number: one
  Bits bits;                                // the result
  Outcome outcome;                          // of the whole expression
  std::optional<ExactNumber> rounded_from;  // the operand of the last rounding
  std::optional<ExactNumber> exact;         // of the whole expression, without any rounding
  std::optional<double> error_ulp;  // from `exact` to the result; none unless both are finite
};

/// `exact` is expression.exact_value(), the same for every format.
DEMI_API Explanation explain(const Expression& expression, const std::optional<ExactNumber>& exact,
                             const Format& format);

/// "1 10000111 00111010101000000000000": sign, exponent and fraction.
DEMI_API std::string fields_text(const Format& format, Bits bits);
/// Letters above them: "s eeeeeeee fffffffffffffffffffffff".
DEMI_API std::string fields_ruler(const Format& format);
/// "0xC39D5000": a word of the format's size.
DEMI_API std::string hexadecimal(const Format& format, Bits bits);

/// Every decimal digit of a format's number: "5.9604644775390625e-8", "inf", "nan".
DEMI_API std::string decimal(const Format& format, Bits bits);

/// The derivation of the bits, a line for each step: the binary number, the rounding, sign and
/// exponent, the exact value with its error, the neighbours.
DEMI_API std::vector<std::string> derivation(const Expression& expression,
                                             const Explanation& explanation);

/// "0.5", "under 0.001": an error in ULP.
DEMI_API std::string ulp_text(double error);

}  // namespace demi::number
