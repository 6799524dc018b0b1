#include "lab/number/exact_number.h"

#include <algorithm>
#include <utility>

namespace demi::number {

ExactNumber power_of_two(std::int64_t exponent) {
  return {.numerator = BigUnsigned(1), .exponent = exponent};
}

ExactNumber sum(const ExactNumber& x, const ExactNumber& y) {
  BigUnsigned left = x.numerator, right = y.numerator;
  ExactNumber result{.denominator = x.denominator, .exponent = std::min(x.exponent, y.exponent)};
  if (x.denominator != y.denominator) {
    left = left * y.denominator;
    right = right * x.denominator;
    result.denominator = x.denominator * y.denominator;
  }
  left <<= x.exponent - result.exponent;
  right <<= y.exponent - result.exponent;
  if (x.negative == y.negative) {
    result.negative = x.negative;
    left += right;
    result.numerator = std::move(left);
  } else if (left >= right) {
    result.negative = x.negative && left != right;
    left -= right;
    result.numerator = std::move(left);
  } else {
    result.negative = y.negative;
    right -= left;
    result.numerator = std::move(right);
  }
  return result;
}

ExactNumber product(const ExactNumber& x, const ExactNumber& y) {
  return {.negative = x.negative != y.negative,
          .numerator = x.numerator * y.numerator,
          .denominator = x.denominator * y.denominator,
          .exponent = x.exponent + y.exponent};
}

ExactNumber quotient(const ExactNumber& x, const ExactNumber& y) {
  return {.negative = x.negative != y.negative,
          .numerator = x.numerator * y.denominator,
          .denominator = x.denominator * y.numerator,
          .exponent = x.exponent - y.exponent};
}

ExactNumber negated(ExactNumber x) {
  x.negative = !x.negative;
  return x;
}

LeadingBits leading_bits(const ExactNumber& x) {
  // Long division in base 2, from a remainder with denominator <= remainder < 2 × denominator.
  BigUnsigned remainder = x.numerator, denominator = x.denominator;
  std::int64_t magnitude = remainder.bit_width() - denominator.bit_width();
  remainder <<= std::max<std::int64_t>(0, -magnitude);
  denominator <<= std::max<std::int64_t>(0, magnitude);
  if (remainder < denominator) {
    remainder <<= 1;
    --magnitude;
  }
  LeadingBits leading{.exponent = x.exponent + magnitude - 127};
  for (int bit = 0; bit < 128; ++bit) {
    leading.bits <<= 1;
    if (remainder >= denominator) {
      remainder -= denominator;
      leading.bits |= 1;
    }
    remainder <<= 1;
  }
  leading.has_rest = !remainder.is_zero();
  return leading;
}

RoundedInteger nearest_integer(const LeadingBits& x, std::int64_t exponent) {
  const std::int64_t dropped = exponent - x.exponent;         // of the 128 bits; at least 64
  if (dropped > 128) return {.value = 0, .is_exact = false};  // under a half
  const Bits128 kept = dropped == 128 ? 0 : x.bits >> dropped;
  const Bits128 rest = x.bits - (dropped == 128 ? 0 : kept << dropped);
  const Bits128 half = Bits128{1} << (dropped - 1);
  const bool is_tie = rest == half && !x.has_rest;
  const bool up = is_tie ? (kept & 1) != 0 : rest >= half;
  return {.value = static_cast<std::uint64_t>(kept) + (up ? 1 : 0),
          .is_exact = rest == 0 && !x.has_rest};
}

}  // namespace demi::number
