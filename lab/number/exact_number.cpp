#include "lab/number/exact_number.h"

#include <algorithm>
#include <bit>
#include <utility>

namespace demi::number {
namespace {

constexpr int kWordBits = 32;

}  // namespace

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

BigUnsigned::BigUnsigned(std::uint64_t value) {
  for (; value != 0; value >>= kWordBits) words_.push_back(static_cast<std::uint32_t>(value));
}

BigUnsigned BigUnsigned::power(std::uint32_t base, std::uint64_t exponent) {
  BigUnsigned result(1), square(base);
  for (; exponent != 0; exponent >>= 1) {
    if (exponent & 1) result = result * square;
    if (exponent > 1) square = square * square;
  }
  return result;
}

std::int64_t BigUnsigned::bit_width() const {
  if (is_zero()) return 0;
  return static_cast<std::int64_t>(words_.size()) * kWordBits - std::countl_zero(words_.back());
}

std::string BigUnsigned::to_decimal() const {
  constexpr std::uint32_t kBillion = 1'000'000'000;
  std::string reversed;
  for (BigUnsigned rest = *this; !rest.is_zero();) {
    std::uint64_t remainder = 0;
    for (auto word = rest.words_.rbegin(); word != rest.words_.rend(); ++word) {
      const std::uint64_t part = (remainder << kWordBits) | *word;
      *word = static_cast<std::uint32_t>(part / kBillion);
      remainder = part % kBillion;
    }
    rest.trim();
    for (int digit = 0; digit < 9 && (!rest.is_zero() || remainder != 0); ++digit) {
      reversed += static_cast<char>('0' + remainder % 10);
      remainder /= 10;
    }
  }
  if (reversed.empty()) return "0";
  return {reversed.rbegin(), reversed.rend()};
}

void BigUnsigned::multiply_add(std::uint32_t factor, std::uint32_t addend) {
  std::uint64_t carry = addend;
  for (std::uint32_t& word : words_) {
    carry += static_cast<std::uint64_t>(word) * factor;
    word = static_cast<std::uint32_t>(carry);
    carry >>= kWordBits;
  }
  words_.push_back(static_cast<std::uint32_t>(carry));
  trim();
}

BigUnsigned& BigUnsigned::operator+=(const BigUnsigned& other) {
  words_.resize(std::max(words_.size(), other.words_.size()) + 1);
  std::uint64_t carry = 0;
  for (std::size_t i = 0; i < words_.size(); ++i) {
    carry += words_[i];
    if (i < other.words_.size()) carry += other.words_[i];
    words_[i] = static_cast<std::uint32_t>(carry);
    carry >>= kWordBits;
  }
  trim();
  return *this;
}

BigUnsigned& BigUnsigned::operator-=(const BigUnsigned& other) {
  std::uint64_t borrow = 0;
  for (std::size_t i = 0; i < words_.size(); ++i) {
    const std::uint64_t taken = borrow + (i < other.words_.size() ? other.words_[i] : 0);
    borrow = words_[i] < taken;
    words_[i] -= static_cast<std::uint32_t>(taken);
  }
  trim();
  return *this;
}

BigUnsigned& BigUnsigned::operator<<=(std::int64_t bits) {
  if (is_zero()) return *this;
  const auto rest = static_cast<int>(bits % kWordBits);
  words_.push_back(0);
  if (rest != 0) {
    for (std::size_t i = words_.size() - 1; i > 0; --i)
      words_[i] = (words_[i] << rest) | (words_[i - 1] >> (kWordBits - rest));
    words_[0] <<= rest;
  }
  words_.insert(words_.begin(), static_cast<std::size_t>(bits / kWordBits), 0);
  trim();
  return *this;
}

BigUnsigned operator*(const BigUnsigned& a, const BigUnsigned& b) {
  BigUnsigned product;
  product.words_.resize(a.words_.size() + b.words_.size());
  for (std::size_t i = 0; i < a.words_.size(); ++i) {
    std::uint64_t carry = 0;
    for (std::size_t j = 0; j < b.words_.size(); ++j) {
      carry += static_cast<std::uint64_t>(a.words_[i]) * b.words_[j] + product.words_[i + j];
      product.words_[i + j] = static_cast<std::uint32_t>(carry);
      carry >>= kWordBits;
    }
    product.words_[i + b.words_.size()] = static_cast<std::uint32_t>(carry);
  }
  product.trim();
  return product;
}

std::strong_ordering operator<=>(const BigUnsigned& a, const BigUnsigned& b) {
  if (a.words_.size() != b.words_.size()) return a.words_.size() <=> b.words_.size();
  return std::lexicographical_compare_three_way(a.words_.rbegin(), a.words_.rend(),
                                                b.words_.rbegin(), b.words_.rend());
}

void BigUnsigned::trim() {
  while (!words_.empty() && words_.back() == 0) words_.pop_back();
}

}  // namespace demi::number
