#include "lab/number/big_unsigned.h"

#include <algorithm>
#include <bit>

namespace demi::number {
namespace {

constexpr int kWordBits = 32;

}  // namespace

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
