#include "lab/number/float_bits.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <limits>
#include <random>
#include <sstream>
#include <string>
#include <utility>

#include "demi/core/number.h"
#include "demi/core/source_dir_testing.h"
#include "lab/number/formats_testing.h"
#include "lab/number/number_text.h"

namespace demi::number {
namespace {

// FNV-1a.
class Digest {
 public:
  void add(std::uint64_t value, int bytes) {
    for (int i = 0; i < bytes; ++i) digest_ = (digest_ ^ ((value >> 8 * i) & 0xFF)) * 0x100000001B3;
  }
  std::uint64_t value() const { return digest_; }

 private:
  std::uint64_t digest_ = 0xCBF29CE484222325;
};

std::string printed(const char* form, double value) {
  std::string text(1300, '\0');
  text.resize(static_cast<std::size_t>(std::snprintf(text.data(), text.size(), form, value)));
  return text;
}

// A number as a user types it.
Bits read_as(const Format& format, const std::string& text) {
  const bool negative = text.starts_with('-');
  std::size_t at = negative;
  ExactNumber value = read_number(text, at).value;
  EXPECT_EQ(at, text.size()) << text;
  value.negative = negative;
  return round_to(format, value);
}

int width(const Format& format) { return 1 + format.exponent_bits + format.fraction_bits; }

// The value, or past the largest one what would follow if the exponents went on.
double value_in(const Format& format, Bits magnitude) {
  if (is_finite(format, magnitude)) return double_of(format, magnitude);
  const double largest = double_of(format, largest_finite(format));
  return largest + (largest - double_of(format, largest_finite(format) - 1));
}

// tests/fixtures/numbers/make.py wrote the digests from what ml_dtypes and numpy do.
TEST(FloatBits, ReadsAndRoundsAsMlDtypesDoesAtEveryBoundary) {
  std::ifstream file(source_dir() / "tests/fixtures/numbers/roundings.txt");
  int lines = 0;
  std::string name, decoded_digest, rounded_digest;
  for (Bits first = 0; file >> name >> first >> decoded_digest >> rounded_digest; ++lines) {
    const Format& format = format_of(parse_dtype(name));
    Digest decoded, rounded;
    for (Bits bits = first; bits < std::min<Bits>(first + 2048, Bits{1} << width(format)); ++bits) {
      const double value = double_of(format, bits);
      decoded.add(std::isnan(value) ? 0x7FF8000000000000 : std::bit_cast<std::uint64_t>(value), 8);
      if (!is_finite(format, bits)) continue;
      const Bits magnitude = with_sign(format, bits, false);
      const auto middle =
          static_cast<float>((value_in(format, magnitude) + value_in(format, magnitude + 1)) / 2);
      const float infinity = std::numeric_limits<float>::infinity();
      for (const float number : {static_cast<float>(std::fabs(value)), std::nextafterf(middle, 0),
                                 middle, std::nextafterf(middle, infinity)})
        rounded.add(read_as(format, printed(is_negative(format, bits) ? "-%a" : "%a", number)), 2);
    }
    EXPECT_EQ(decoded.value(), std::stoull(decoded_digest, nullptr, 16)) << name << " " << first;
    EXPECT_EQ(rounded.value(), std::stoull(rounded_digest, nullptr, 16)) << name << " " << first;
  }
  EXPECT_EQ(lines, 2 * 32 + 2) << "fp16, bf16, fp8_e4m3, fp8_e5m2";
}

// Digits far behind those that fp64 holds decide: rounded to fp64 first, all three would be ties.
TEST(FloatBits, RoundsOnceHoweverCloseToTheMiddle) {
  const std::string zeros(1100, '0'), nines(1100, '9');
  for (const Format* format : {&kE4m3, &kE5m2, &kFp16, &kBf16}) {
    const Bits stride = width(*format) == 8 ? 1 : 61;
    for (Bits bits = 0; bits < overflow(*format); bits += stride) {
      const double middle = (value_in(*format, bits) + value_in(*format, bits + 1)) / 2;
      std::string text = printed("%.160f", middle);
      text.resize(text.find_last_not_of('0') + 1);
      // fp8_e4m3 has a number that would follow, and gives its bits to NaN.
      const Bits above = bits + 1;
      EXPECT_EQ(read_as(*format, text), bits % 2 == 0 ? bits : above) << text;
      EXPECT_EQ(read_as(*format, text + zeros + "1"), above) << text;
      if (!text.ends_with('.')) {
        --text.back();
      } else if (middle < 0x1p53) {
        text = printed("%.0f.", middle - 1);
      } else {
        continue;  // middle - 1 is not exact
      }
      EXPECT_EQ(read_as(*format, text + nines), bits) << text;
    }
  }
}

// strtof and strtod of glibc round to nearest for any number of digits.
TEST(FloatBits, RoundsFp32AndFp64AsTheCLibraryDoes) {
  std::mt19937_64 random(2);
  for (int i = 0; i < 6000; ++i) {
    std::string text;
    for (std::uint64_t digits = 1 + random() % (i % 10 == 0 ? 800 : 40); digits > 0; --digits)
      text += static_cast<char>('0' + random() % 10);
    if (random() % 2) text.insert(random() % text.size(), 1, '.');
    text.append("e").append(std::to_string(static_cast<int>(random() % 700) - 380));
    const double fp64 = std::strtod(text.c_str(), nullptr);
    const float fp32 = std::strtof(text.c_str(), nullptr);
    ASSERT_EQ(read_as(kFp64, text), std::bit_cast<std::uint64_t>(fp64)) << text;
    ASSERT_EQ(read_as(kFp32, text), std::bit_cast<std::uint32_t>(fp32)) << text;
  }
}

// Midpoints of neighbours in fp64, and digits after them.
TEST(FloatBits, RoundsFp64AsTheCLibraryDoesAtBoundaries) {
  std::mt19937_64 random(3);
  for (int i = 0; i < 600; ++i) {
    // A third of them subnormal.
    const std::uint64_t bits = i % 3 == 0 ? random() >> 12 : random() % 0x7FEFFFFFFFFFFFFF;
    ExactNumber middle = value_of(kFp64, bits);
    middle = sum(middle, power_of_two(log2_ulp(kFp64, middle) - 1));
    const std::string exact = to_decimal(middle);
    const std::size_t end = std::min(exact.find('e'), exact.size());
    const bool has_point = exact.find('.') != std::string::npos;
    for (const char* more : {"", "0000000001", "5"}) {
      std::string text = exact;
      text.insert(end, *more && !has_point ? std::string(".") + more : more);
      ASSERT_EQ(read_as(kFp64, text),
                std::bit_cast<std::uint64_t>(std::strtod(text.c_str(), nullptr)))
          << text;
    }
  }
}

TEST(FloatBits, RoundsFp32NumbersAsTheConversionsOfArraysDo) {
  std::mt19937 random(4);
  for (int i = 0; i < 60000; ++i) {
    const auto bits = static_cast<std::uint32_t>(random());
    const float value = std::bit_cast<float>(bits);
    if (!std::isfinite(value)) continue;
    const ExactNumber exact = value_of(kFp32, bits);
    ASSERT_EQ(round_to(kFp16, exact), fp16_from_fp32(value)) << bits;
    ASSERT_EQ(round_to(kBf16, exact), bf16_from_fp32(value)) << bits;
    // tf32 by definition: the upper 19 bits of fp32, to the nearest, ties to even.
    ASSERT_EQ(round_to(kTf32, exact), (bits + 0xFFFULL + ((bits >> 13) & 1)) >> 13) << bits;
    ASSERT_EQ(round_to(kFp32, exact), bits);
  }
}

TEST(FloatBits, SpecialBitsAreThoseOfTheStandards) {
  EXPECT_EQ(quiet_nan(kFp64), 0x7FF8000000000000);
  EXPECT_EQ(quiet_nan(kFp32), 0x7FC00000U);
  EXPECT_EQ(quiet_nan(kFp16), 0x7E00U);
  EXPECT_EQ(quiet_nan(kE4m3), 0x7FU);
  EXPECT_EQ(overflow(kFp32), 0x7F800000U);
  EXPECT_EQ(overflow(kE5m2), 0x7CU);
  EXPECT_EQ(kind_of(kE4m3, overflow(kE4m3)), Kind::kNaN);
  EXPECT_EQ(kind_of(kE5m2, overflow(kE5m2)), Kind::kInfinity);
  EXPECT_EQ(double_of(kFp32, largest_finite(kFp32)), std::numeric_limits<float>::max());
  EXPECT_EQ(double_of(kFp64, largest_finite(kFp64)), std::numeric_limits<double>::max());
  EXPECT_EQ(double_of(kFp64, smallest_normal(kFp64)), std::numeric_limits<double>::min());
  EXPECT_EQ(double_of(kFp64, smallest_subnormal(kFp64)), std::numeric_limits<double>::denorm_min());
  // Open Compute Project, OFP8, table 1.
  EXPECT_EQ(double_of(kE4m3, largest_finite(kE4m3)), 448);
  EXPECT_EQ(double_of(kE4m3, smallest_normal(kE4m3)), 0x1p-6);
  EXPECT_EQ(double_of(kE4m3, smallest_subnormal(kE4m3)), 0x1p-9);
  EXPECT_EQ(double_of(kE5m2, largest_finite(kE5m2)), 57344);
  EXPECT_EQ(double_of(kE5m2, smallest_normal(kE5m2)), 0x1p-14);
  EXPECT_EQ(double_of(kE5m2, smallest_subnormal(kE5m2)), 0x1p-16);
  EXPECT_EQ(storage_bits(kTf32, round_to(kTf32, value_of(kFp32, 0xC39D5000))), 0xC39D4000)
      << "-314.625 is half way between -314.5 and -314.75 in tf32: to the even one";
}

// OCP Microscaling formats 1.0, table 5: 0, 0.5, 1, 1.5, 2, 3, 4, 6; ties to even.
TEST(FloatBits, Fp4HasEightMagnitudesAndSaturates) {
  const double values[] = {0, 0.5, 1, 1.5, 2, 3, 4, 6};
  for (Bits code = 0; code < 8; ++code) {
    EXPECT_EQ(double_of(kE2m1, code), values[code]);
    EXPECT_EQ(double_of(kE2m1, code | 8), -values[code]);
    EXPECT_TRUE(is_finite(kE2m1, code | 8));
  }
  const std::pair<const char*, Bits> rounded[] = {
      {"0.25", 0}, {"0.2501", 1}, {"0.75", 2},  {"1.25", 2},  {"1.75", 4},   {"2.5", 4},
      {"3.5", 6},  {"5", 6},      {"5.001", 7}, {"6.999", 7}, {"-1e9", 0xF}, {"-0.1", 8}};
  for (const auto& [text, bits] : rounded) EXPECT_EQ(read_as(kE2m1, text), bits) << text;
  EXPECT_EQ(largest_finite(kE2m1), 7U);
  EXPECT_EQ(next_up(kE2m1, 7), 7U);
  EXPECT_EQ(storage_bits(kE2m1, 0xF), 0xFU);
  EXPECT_FALSE(is_beyond(kE2m1, value_of(kFp32, 0x40DFFFFF))) << "under 7";
  EXPECT_TRUE(is_beyond(kE2m1, value_of(kFp32, 0x40E00000))) << "half a step further";
  EXPECT_FALSE(is_beyond(kE4m3, value_of(kFp32, 0x43E80000))) << "464, a tie: to 448";
  EXPECT_TRUE(is_beyond(kE4m3, value_of(kFp32, 0x43E80001)));
  EXPECT_TRUE(is_beyond(kE4m3, value_of(kFp32, 0x7F000000)));
  EXPECT_FALSE(is_beyond(kE4m3, {}));
}

TEST(FloatBits, FieldsAreTakenApartAndPutTogether) {
  for (const Format* format : {&kFp16, &kBf16, &kE4m3, &kE5m2}) {
    for (Bits bits = 0; bits < Bits{1} << width(*format); ++bits)
      ASSERT_EQ(bits_of(*format, fields_of(*format, bits)), bits);
  }
  // IEEE 754's layout, by the issue of -314.625 in fp32.
  const Fields fields = fields_of(kFp32, 0xC39D5000);
  EXPECT_EQ(fields.sign, 1U);
  EXPECT_EQ(fields.exponent, 0b10000111U);
  EXPECT_EQ(fields.fraction, 0b00111010101000000000000U);
}

TEST(FloatBits, NeighboursAreThoseOfNextafter) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  std::mt19937_64 random(5);
  for (int i = 0; i < 20000; ++i) {
    const std::uint64_t bits = i < 2000 ? random() % 3 : random();
    for (const std::uint64_t signed_bits : {bits, bits ^ (std::uint64_t{1} << 63)}) {
      const double value = std::bit_cast<double>(signed_bits);
      if (std::isnan(value)) continue;
      // nextafter gives -0 between the smallest negative number and 0, as nextUp does.
      ASSERT_EQ(next_up(kFp64, signed_bits),
                std::bit_cast<std::uint64_t>(std::nextafter(value, kInfinity)));
      ASSERT_EQ(next_down(kFp64, signed_bits),
                std::bit_cast<std::uint64_t>(std::nextafter(value, -kInfinity)));
    }
  }
  EXPECT_EQ(next_up(kFp16, 0x7BFF), 0x7C00U) << "65504 and Inf";
  EXPECT_EQ(next_up(kFp16, 0x7C00), 0x7C00U);
  EXPECT_EQ(next_down(kFp16, 0x7C00), 0x7BFFU);
  EXPECT_EQ(next_down(kFp16, 0xFC00), 0xFC00U);
  EXPECT_EQ(next_up(kFp16, 0xFC00), 0xFBFFU);
  EXPECT_EQ(next_up(kE4m3, 0x7E), 0x7EU) << "448 is the largest";
  EXPECT_EQ(next_down(kE4m3, 0xFE), 0xFEU);
  EXPECT_EQ(next_down(kE4m3, 0x7E), 0x7DU);
}

TEST(FloatBits, ErrorsAreInUnitsInTheLastPlace) {
  const auto error = [](const Format& format, const std::string& text) {
    std::size_t at = 0;
    const ExactNumber x = read_number(text, at).value;
    return error_in_ulp(format, round_to(format, x), x);
  };
  EXPECT_EQ(error(kFp16, "1"), 0);
  EXPECT_EQ(error(kFp16, "2049"), 0.5) << "the ULP is 2";
  EXPECT_EQ(error(kFp16, "2049.5"), 0.25);
  EXPECT_EQ(error(kFp16, "0x1p-26"), 0.25) << "of the smallest subnormal";
  EXPECT_EQ(error(kFp16, "0x1.8p-14"), 0);
  EXPECT_EQ(error(kFp16, "2047.5"), 0.5) << "under 2048 the ULP is 1, though 2048 has one of 2";
  EXPECT_EQ(error(kFp32, "16777217"), 0.5);
  EXPECT_GT(error(kFp16, "1e-400"), 0) << "though fp64 has no such number";
  EXPECT_EQ(error_in_ulp(kFp16, 0x3C01, value_of(kFp16, 0x3C00)), 1);
  EXPECT_EQ(error_in_ulp(kFp16, 0x0001, {}), 1) << "the ULP at 0 is the smallest subnormal";
}

}  // namespace
}  // namespace demi::number
