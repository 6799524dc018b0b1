#include "lab/number/float_bits.h"

#include <algorithm>
#include <bit>

namespace demi::number {
namespace {

constexpr Bits low_ones(int count) { return (Bits{1} << count) - 1; }

Bits sign_bit(const Format& format) {
  return Bits{1} << (format.exponent_bits + format.fraction_bits);
}

std::int64_t smallest_exponent(const Format& format) { return 1 - format.bias; }

ExactNumber magnitude_of(const Format& format, Bits bits) {
  const Fields fields = fields_of(format, bits);
  const Bits hidden = fields.exponent == 0 ? 0 : Bits{1} << format.fraction_bits;
  const auto exponent = std::max<std::int64_t>(static_cast<std::int64_t>(fields.exponent), 1);
  return {.numerator = BigUnsigned(hidden | fields.fraction),
          .exponent = exponent - format.bias - format.fraction_bits};
}

// The bits of the nearest number without its sign, if exponents went on. x is not 0.
Bits unlimited_magnitude(const Format& format, const ExactNumber& x) {
  const LeadingBits leading = leading_bits(x);
  const std::int64_t lowest = smallest_exponent(format);
  const std::int64_t exponent = std::max(leading.magnitude(), lowest);
  if (exponent > format.bias + 1) return overflow(format) + 1;
  // The leading 1 of a normal number, and a carry out of the fraction, add 1 to the exponent.
  return (static_cast<Bits>(exponent - lowest) << format.fraction_bits) +
         nearest_integer(leading, exponent - format.fraction_bits).value;
}

// The next number away from zero, past the largest one infinity if there is one. No infinity.
Bits away_from_zero(const Format& format, Bits bits) {
  const bool is_largest = with_sign(format, bits, false) == largest_finite(format);
  return is_largest && !format.has_infinity ? bits : bits + 1;
}

}  // namespace

Fields fields_of(const Format& format, Bits bits) {
  return {.sign = (bits & sign_bit(format)) != 0 ? Bits{1} : Bits{0},
          .exponent = (bits >> format.fraction_bits) & low_ones(format.exponent_bits),
          .fraction = bits & low_ones(format.fraction_bits)};
}

Bits bits_of(const Format& format, const Fields& fields) {
  return (fields.sign != 0 ? sign_bit(format) : 0) | (fields.exponent << format.fraction_bits) |
         fields.fraction;
}

Kind kind_of(const Format& format, Bits bits) {
  const Bits magnitude = with_sign(format, bits, false);
  if (magnitude == 0) return Kind::kZero;
  if (magnitude < smallest_normal(format)) return Kind::kSubnormal;
  if (magnitude <= largest_finite(format)) return Kind::kNormal;
  if (format.has_infinity && magnitude == overflow(format)) return Kind::kInfinity;
  return Kind::kNaN;
}

Bits storage_bits(const Format& format, Bits bits) {
  const int unused = 8 * format.bytes - 1 - format.exponent_bits - format.fraction_bits;
  return format.dtype == Dtype::tf32 ? bits << unused : bits;
}

bool is_negative(const Format& format, Bits bits) { return (bits & sign_bit(format)) != 0; }

bool is_finite(const Format& format, Bits bits) {
  return with_sign(format, bits, false) <= largest_finite(format);
}

Bits with_sign(const Format& format, Bits bits, bool negative) {
  return negative ? bits | sign_bit(format) : bits & ~sign_bit(format);
}

Bits largest_finite(const Format& format) { return overflow(format) - (format.has_nan ? 1 : 0); }

Bits smallest_normal(const Format& format) { return Bits{1} << format.fraction_bits; }

Bits smallest_subnormal(const Format&) { return 1; }

Bits quiet_nan(const Format& format) {
  if (!format.has_infinity) return overflow(format);
  return overflow(format) | Bits{1} << (format.fraction_bits - 1);
}

Bits overflow(const Format& format) {
  // fp8_e4m3: S.1111.111, one above the largest number S.1111.110.
  const Bits fraction = format.has_infinity ? 0 : low_ones(format.fraction_bits);
  return low_ones(format.exponent_bits) << format.fraction_bits | fraction;
}

Bits round_to(const Format& format, const ExactNumber& x) {
  const Bits magnitude = x.is_zero() ? 0 : unlimited_magnitude(format, x);
  return with_sign(format, std::min(magnitude, overflow(format)), x.negative);
}

bool is_beyond(const Format& format, const ExactNumber& x) {
  return !x.is_zero() && unlimited_magnitude(format, x) > largest_finite(format);
}

ExactNumber value_of(const Format& format, Bits bits) {
  ExactNumber value = magnitude_of(format, bits);
  value.negative = is_negative(format, bits);
  return value;
}

double double_of(const Format& format, Bits bits) {
  const Format& fp64 = format_of(Dtype::fp64);
  const bool negative = is_negative(format, bits);
  switch (kind_of(format, bits)) {
    case Kind::kInfinity:
      return std::bit_cast<double>(with_sign(fp64, overflow(fp64), negative));
    case Kind::kNaN:
      return std::bit_cast<double>(with_sign(fp64, quiet_nan(fp64), negative));
    default:
      return std::bit_cast<double>(round_to(fp64, value_of(format, bits)));
  }
}

Bits next_up(const Format& format, Bits bits) {
  if (kind_of(format, bits) == Kind::kZero) return smallest_subnormal(format);
  if (is_negative(format, bits)) return bits - 1;
  return kind_of(format, bits) == Kind::kInfinity ? bits : away_from_zero(format, bits);
}

Bits next_down(const Format& format, Bits bits) {
  const bool negative = is_negative(format, bits);
  const Bits mirrored = next_up(format, with_sign(format, bits, !negative));
  return with_sign(format, mirrored, !is_negative(format, mirrored));
}

std::int64_t log2_ulp(const Format& format, const ExactNumber& x) {
  const std::int64_t lowest = smallest_exponent(format);
  const std::int64_t exponent = x.is_zero() ? lowest : leading_bits(x).magnitude();
  return std::max(exponent, lowest) - format.fraction_bits;
}

double error_in_ulp(const Format& format, Bits bits, const ExactNumber& x) {
  ExactNumber error = sum(value_of(format, bits), negated(x));
  error.negative = false;
  if (error.is_zero()) return 0;
  error.exponent -= log2_ulp(format, x);
  const Bits rounded = round_to(format_of(Dtype::fp64), error);
  return std::bit_cast<double>(std::max(rounded, smallest_subnormal(format_of(Dtype::fp64))));
}

}  // namespace demi::number
