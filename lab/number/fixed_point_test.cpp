#include "lab/number/fixed_point.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <string>

#include "demi/core/error.h"
#include "lab/number/float_bits.h"

namespace demi::number {
namespace {

ExactNumber exact_of(double value) {
  return value_of(format_of(Dtype::fp64), std::bit_cast<std::uint64_t>(value));
}

ExactNumber exact_of(const std::string& text) { return Expression(text).exact_value().value(); }

double nearest_double(const ExactNumber& x) {
  const Format& fp64 = format_of(Dtype::fp64);
  return double_of(fp64, round_to(fp64, x));
}

// The formula on doubles, which is exact where both sides have few bits: the integer is x × 2^F
// rounded half to even (nearbyint) and kept in -2^(N - 1) to 2^(N - 1) - 1.
TEST(FixedPoint, IsTheRoundedProductWithAPowerOfTwo) {
  for (const FixedPoint split : {FixedPoint{8, 8}, {1, 15}, {4, 0}, {1, 3}, {1, 0}, {3, 6}}) {
    const double scale = std::ldexp(1, split.fraction_bits), end = std::ldexp(1, split.bits() - 1);
    for (int i = -4000; i <= 4000; ++i) {
      const int factor = 1 + std::abs(i) / 200;
      const double x = i / 8.0 / scale * factor;  // ties among them
      const double wanted = std::clamp(std::nearbyint(x * scale), -end, end - 1);
      const FixedValue fixed = round_to(split, exact_of(x));
      ASSERT_EQ(nearest_double(fixed.value), wanted / scale) << name_of(split) << " of " << x;
      ASSERT_EQ(fixed.error_ulp, std::abs(wanted - x * scale)) << name_of(split) << " of " << x;
      const auto integer = static_cast<std::int64_t>(wanted);
      ASSERT_EQ(fixed.bits, static_cast<std::uint64_t>(integer) & ((1ULL << split.bits()) - 1));
      const bool is_beyond = std::nearbyint(x * scale) != wanted;
      const Outcome outcome = is_beyond             ? Outcome::kOverflow
                              : wanted == x * scale ? Outcome::kExact
                              : wanted == 0         ? Outcome::kUnderflow
                                                    : Outcome::kRounded;
      ASSERT_EQ(fixed.outcome, outcome) << name_of(split) << " of " << x;
    }
  }
}

TEST(FixedPoint, SixtyFourBitsAreWhole) {
  const FixedValue low = round_to({64, 0}, exact_of("-9223372036854775808"));
  EXPECT_EQ(low.bits, 1ULL << 63);
  EXPECT_EQ(low.outcome, Outcome::kExact);
  EXPECT_EQ(round_to({64, 0}, exact_of("-9223372036854775809")).outcome, Outcome::kOverflow);
  EXPECT_EQ(round_to({64, 0}, exact_of("9223372036854775807")).bits, (1ULL << 63) - 1);
  EXPECT_EQ(round_to({64, 0}, exact_of("9223372036854775807")).outcome, Outcome::kExact);
  EXPECT_EQ(round_to({64, 0}, exact_of("9223372036854775807.25")).outcome, Outcome::kRounded);
  EXPECT_EQ(round_to({64, 0}, exact_of("9223372036854775807.5")).outcome, Outcome::kOverflow);
  EXPECT_EQ(round_to({1, 63}, exact_of("1e300")).outcome, Outcome::kOverflow);
  EXPECT_EQ(round_to({1, 63}, exact_of("-1")).bits, 1ULL << 63);
  EXPECT_EQ(round_to({1, 63}, exact_of("1e-300")).outcome, Outcome::kUnderflow);
  EXPECT_EQ(round_to({1, 63}, exact_of("-0")).bits, 0U) << "one zero";
}

TEST(FixedPoint, ShowsItsFields) {
  const FixedValue pi = round_to({8, 8}, exact_of("3.14159"));  // 804.247... of 256
  EXPECT_EQ(fields_ruler({8, 8}), "s iiiiiii ffffffff");
  EXPECT_EQ(fields_text({8, 8}, pi.bits), "0 0000011 00100100");
  EXPECT_EQ(hexadecimal({8, 8}, pi.bits), "0x0324");
  EXPECT_EQ(fields_text({8, 8}, round_to({8, 8}, exact_of("-1")).bits), "1 1111111 00000000");
  EXPECT_EQ(fields_ruler({1, 3}), "s fff");
  EXPECT_EQ(fields_text({1, 3}, round_to({1, 3}, exact_of("-0.25")).bits), "1 110");
  EXPECT_EQ(fields_text({3, 0}, round_to({3, 0}, exact_of("-4")).bits), "1 00");
  EXPECT_EQ(hexadecimal({3, 6}, 0x1FF), "0x01FF");
}

TEST(FixedPoint, ASplitIsReadOrRefused) {
  const FixedPoint split = read_fixed_point("1.15");
  EXPECT_EQ(split.integer_bits, 1);
  EXPECT_EQ(split.fraction_bits, 15);
  EXPECT_EQ(read_fixed_point("64.0").integer_bits, 64);
  EXPECT_EQ(read_fixed_point("16.48").fraction_bits, 48);
  EXPECT_EQ(read_fixed_points("8.8,1.15").at(1).fraction_bits, 15);
  for (const char* text : {"", "8", "8.", ".8", "0.8", "-1.8", "8.-1", "8.8.8", "64.1", "8,8",
                           "99999999999.1", "8.8 ", "2147483647.2147483647", "1.2147483647"}) {
    EXPECT_THROW(read_fixed_point(text), UsageError) << text;
    EXPECT_THROW(read_fixed_points(text), UsageError) << text;
  }
  for (const char* text : {",", "8.8,", ",8.8", "8.8,,8.8"})
    EXPECT_THROW(read_fixed_points(text), UsageError) << text;
}

}  // namespace
}  // namespace demi::number
