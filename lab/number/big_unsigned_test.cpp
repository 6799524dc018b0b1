#include <gtest/gtest.h>

#include <bit>
#include <cstdint>
#include <random>
#include <string>

#include "lab/number/exact_number.h"

namespace demi::number {
namespace {

__extension__ using Wide = unsigned __int128;

std::string decimal_of(Wide value) {
  std::string text;
  for (; value != 0; value /= 10) text.insert(text.begin(), static_cast<char>('0' + value % 10));
  return text.empty() ? "0" : text;
}

BigUnsigned big(Wide value) {
  BigUnsigned high(static_cast<std::uint64_t>(value >> 64));
  high <<= 64;
  return high += BigUnsigned(static_cast<std::uint64_t>(value));
}

TEST(BigUnsigned, AgreesWithTheCompilersIntegersOf128Bits) {
  std::mt19937_64 random(1);
  for (int i = 0; i < 20000; ++i) {
    const auto shorten = [&] { return random() >> (random() % 64); };
    const std::uint64_t a = shorten(), b = shorten();
    const Wide wide = Wide{a} << (random() % 64);
    EXPECT_EQ((big(a) * big(b)).to_decimal(), decimal_of(Wide{a} * b));
    BigUnsigned total = big(wide >> 1);
    EXPECT_EQ((total += big(b)).to_decimal(), decimal_of((wide >> 1) + b));
    EXPECT_EQ((total -= big(b)).to_decimal(), decimal_of(wide >> 1));
    const auto shift = static_cast<std::int64_t>(random() % 64);
    BigUnsigned shifted = big(a);
    EXPECT_EQ((shifted <<= shift).to_decimal(), decimal_of(Wide{a} << shift));
    BigUnsigned chunk = big(a);
    chunk.multiply_add(static_cast<std::uint32_t>(b), static_cast<std::uint32_t>(b >> 32));
    EXPECT_EQ(chunk.to_decimal(), decimal_of(Wide{a} * static_cast<std::uint32_t>(b) + (b >> 32)));
    EXPECT_EQ(big(wide) < big(Wide{b} << 40), wide < Wide{b} << 40);
    EXPECT_EQ(big(wide) == big(Wide{b} << 40), wide == Wide{b} << 40);
    EXPECT_EQ(big(a).bit_width(), std::bit_width(a));
  }
}

TEST(BigUnsigned, HoldsNumbersOfManyWords) {
  // 2^200, and 10^40 as 10^20 squared.
  EXPECT_EQ(BigUnsigned::power(2, 200).to_decimal(),
            "1606938044258990275541962092341162602522202993782792835301376");
  EXPECT_EQ(BigUnsigned::power(10, 40).to_decimal(), std::string("1") + std::string(40, '0'));
  EXPECT_EQ(BigUnsigned::power(7, 0).to_decimal(), "1");
  BigUnsigned borrow = BigUnsigned::power(2, 200);
  borrow -= BigUnsigned(1);
  EXPECT_EQ(borrow.bit_width(), 200);
  EXPECT_EQ((borrow += BigUnsigned(1)).bit_width(), 201);
}

TEST(BigUnsigned, ZeroIsZeroHoweverItCameAbout) {
  BigUnsigned zero(5);
  zero -= BigUnsigned(5);
  EXPECT_TRUE(zero.is_zero());
  EXPECT_EQ(zero, BigUnsigned());
  EXPECT_EQ(zero.bit_width(), 0);
  EXPECT_EQ(zero.to_decimal(), "0");
  EXPECT_TRUE((zero <<= 100).is_zero());
  EXPECT_TRUE((zero * BigUnsigned::power(2, 100)).is_zero());
}

}  // namespace
}  // namespace demi::number
