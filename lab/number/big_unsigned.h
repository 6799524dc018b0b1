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

}  // namespace demi::number
