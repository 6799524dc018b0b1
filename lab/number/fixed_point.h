#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "demi/core/export.h"
#include "lab/number/exact_number.h"
#include "lab/number/expression.h"

namespace demi::number {

/// A two's complement number: integer_bits, of which one is the sign, before the point, and
/// fraction_bits behind it. 1 to 64 bits in all. Its value is an integer × 2^-fraction_bits.
struct FixedPoint {
  int integer_bits, fraction_bits;
  int bits() const { return integer_bits + fraction_bits; }
};

/// Reads "8.8". Throws UsageError.
DEMI_API FixedPoint read_fixed_point(const std::string& text);
/// Reads "8.8,1.15". Throws UsageError.
DEMI_API std::vector<FixedPoint> read_fixed_points(const std::string& text);

/// "8.8", and "fixed 8.8".
DEMI_API std::string text_of(FixedPoint split);
DEMI_API std::string name_of(FixedPoint split);
/// -2^(integer_bits - 1), the largest number, and the distance between two.
DEMI_API ExactNumber lowest(FixedPoint split);
DEMI_API ExactNumber largest(FixedPoint split);
DEMI_API ExactNumber step(FixedPoint split);

/// A number in a fixed-point format.
struct FixedValue {
  std::uint64_t bits;  // two's complement; those above FixedPoint::bits() are 0
  ExactNumber value;
  Outcome outcome;   // kExact, kRounded, kUnderflow (became 0) or kOverflow (saturated)
  double error_ulp;  // from the number to `value`; a ULP is a step
};

/// Rounds to the nearest number, ties to the even integer. A number beyond the range becomes the
/// end of the range, as by saturating instructions.
DEMI_API FixedValue round_to(FixedPoint split, const ExactNumber& x);

/// "s iiiiiii ffffffff", and the bits in the same form.
DEMI_API std::string fields_ruler(FixedPoint split);
DEMI_API std::string fields_text(FixedPoint split, std::uint64_t bits);
/// "0x0324": a word of whole bytes.
DEMI_API std::string hexadecimal(FixedPoint split, std::uint64_t bits);

/// The derivation of the value, a line for each step.
DEMI_API std::vector<std::string> derivation(FixedPoint split, const ExactNumber& x,
                                             const FixedValue& fixed);

}  // namespace demi::number
