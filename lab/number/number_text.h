#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include "demi/core/export.h"
#include "lab/number/exact_number.h"
#include "lab/number/float_bits.h"

namespace demi::number {

/// A number as it was written. Never negative: a minus is the expression's.
struct Literal {
  Kind kind = Kind::kZero;   // kNormal for every finite number but 0
  ExactNumber value;         // if finite
  bool is_stand_in = false;  // value is 10^5000 or 10^-5000 in place of a number beyond it,
                             // which every format rounds alike
};

/// Reads the number that begins at text[at], of any length, and moves `at` behind it: 1, 1.5e-8,
/// .5, 0x1.8p-3 (C's hexadecimal form), inf, infinity or nan in any letter case. Throws UsageError
/// with the position if there is none.
DEMI_API Literal read_number(std::string_view text, std::size_t& at);

/// Throws UsageError: `what` is wrong with the number or expression at text[at].
[[noreturn]] DEMI_API void refuse_number(std::string_view text, std::size_t at,
                                         std::string_view what);

/// All decimal digits of a number without denominator: "-314.5", "5.9604644775390625e-8". It has an
/// exponent if it is under 10^-6 or at least 10^21.
DEMI_API std::string to_decimal(const ExactNumber& x);

struct RoundedDecimal {
  std::string text;
  bool is_exact;
};
/// The nearest decimal number of that many significant digits, 1 to 18, in the same form.
DEMI_API RoundedDecimal round_to_decimal(const ExactNumber& x, int digits);

}  // namespace demi::number
