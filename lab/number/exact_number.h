#pragma once

#include <compare>
#include <cstdint>
#include <string>
#include <vector>

#include "demi/core/export.h"

namespace demi::number {

/// An unsigned integer of any size, for exact conversions of numbers that people type. Schoolbook
/// arithmetic: 100,000 decimal digits are read in a tenth of a second.
class DEMI_API BigUnsigned {
 public:
  BigUnsigned() = default;  // 0
  explicit BigUnsigned(std::uint64_t value);
  static BigUnsigned power(std::uint32_t base, std::uint64_t exponent);

  bool is_zero() const { return words_.empty(); }
  /// The number of bits without leading zeros: 0 for 0, 8 for 255.
  std::int64_t bit_width() const;
  std::string to_decimal() const;

  /// *this × factor + addend, in place.
  void multiply_add(std::uint32_t factor, std::uint32_t addend);
  BigUnsigned& operator+=(const BigUnsigned& other);
  BigUnsigned& operator-=(const BigUnsigned& other);  // other <= *this
  BigUnsigned& operator<<=(std::int64_t bits);

  DEMI_API friend BigUnsigned operator*(const BigUnsigned& a, const BigUnsigned& b);
  DEMI_API friend std::strong_ordering operator<=>(const BigUnsigned& a, const BigUnsigned& b);
  friend bool operator==(const BigUnsigned& a, const BigUnsigned& b) = default;

 private:
  void trim();

  std::vector<std::uint32_t> words_;  // the lowest first, the last one not 0
};

/// A finite number without any rounding: ± numerator / denominator × 2^exponent. Zero has a sign,
/// as in IEEE 754-2019.
struct ExactNumber {
  bool negative = false;
  BigUnsigned numerator;
  BigUnsigned denominator{1};  // never 0
  std::int64_t exponent = 0;

  bool is_zero() const { return numerator.is_zero(); }
};

DEMI_API ExactNumber power_of_two(std::int64_t exponent);

/// x + y; a sum that is 0 is +0 unless both are -0 (IEEE 754-2019, section 6.3).
DEMI_API ExactNumber sum(const ExactNumber& x, const ExactNumber& y);
DEMI_API ExactNumber product(const ExactNumber& x, const ExactNumber& y);
/// x / y; y is not 0.
DEMI_API ExactNumber quotient(const ExactNumber& x, const ExactNumber& y);
DEMI_API ExactNumber negated(ExactNumber x);

__extension__ using Bits128 = unsigned __int128;

/// |x| = (bits + rest) × 2^exponent with 0 <= rest < 1. The highest of the 128 bits is 1.
struct LeadingBits {
  Bits128 bits = 0;
  std::int64_t exponent = 0;
  bool has_rest = false;  // rest is not 0

  /// floor(log2 |x|): |x| is at least 2^magnitude, and under 2^(magnitude + 1).
  std::int64_t magnitude() const { return exponent + 127; }
};

/// The 128 leading bits of a number that is not 0.
DEMI_API LeadingBits leading_bits(const ExactNumber& x);

struct RoundedInteger {
  std::uint64_t value;
  bool is_exact;
};
/// |x| / 2^exponent to the nearest integer, ties to even. The result is under 2^64.
DEMI_API RoundedInteger nearest_integer(const LeadingBits& x, std::int64_t exponent);

}  // namespace demi::number
