#include "lab/number/explanation.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "lab/number/formats_testing.h"

namespace demi::number {
namespace {

using Lines = std::vector<std::string>;

Explanation explanation_of(const std::string& text, const Format& format) {
  const Expression expression(text);
  return explain(expression, expression.exact_value(), format);
}

Lines derived(const std::string& text, const Format& format) {
  return derivation(Expression(text), explanation_of(text, format));
}

// Worked out by hand: 314.625 = 256 + 32 + 16 + 8 + 2 + 1/2 + 1/8.
TEST(Explanation, DerivesFp32AsTextbooksDo) {
  const Explanation e = explanation_of("-314.625", kFp32);
  EXPECT_EQ(fields_ruler(kFp32), "s eeeeeeee fffffffffffffffffffffff");
  EXPECT_EQ(fields_text(kFp32, e.bits), "1 10000111 00111010101000000000000");
  EXPECT_EQ(hexadecimal(kFp32, e.bits), "0xC39D5000");
  EXPECT_EQ(derived("-314.625", kFp32),
            (Lines{"314.625 = 100111010.101 = 1.00111010101 × 2^8",
                   "sign 1 for minus; exponent 8 + 127 = 135 = 10000111", "value -314.625, exactly",
                   "ULP 2^-15 = 0.000030517578125",
                   "neighbours -314.625030517578125 and -314.624969482421875"}));
}

TEST(Explanation, SaysHowARoundingWent) {
  EXPECT_EQ(derived("-314.625", kFp16),
            (Lines{"314.625 = 100111010.101 = 1.00111010101 × 2^8",
                   // NOLINTNEXTLINE(bugprone-suspicious-missing-comma): one text of two lines
                   "10 fraction bits hold 1.0011101010|1: half way, so to the even one, down to "
                   "1.0011101010",
                   "sign 1 for minus; exponent 8 + 15 = 23 = 10111",
                   "value -314.5, 0.5 ULP from -314.625", "ULP 2^-2 = 0.25",
                   "neighbours -314.75 and -314.25"}));
  EXPECT_EQ(derived("-314.625", kBf16)[1],
            "7 fraction bits hold 1.0011101|0101: less than half way, down to 1.0011101");
  EXPECT_EQ(derived("-314.625", kBf16)[3], "value -314, 0.312 ULP from -314.625");
  // 0.1 = 1.1001100110|0110... × 2^-4.
  EXPECT_EQ(derived("0.1", kFp16)[0], "0.1 = 1.100110011001100... × 2^-4");
  EXPECT_EQ(
      derived("0.1", kFp16)[1],
      "10 fraction bits hold 1.1001100110|01100...: less than half way, down to 1.1001100110");
  EXPECT_EQ(derived("2047.75", kFp16)[1],
            "10 fraction bits hold 1.1111111111|11: more than half way, up to 1.0000000000 × 2^11");
}

TEST(Explanation, SaysWhatOverflows) {
  EXPECT_EQ(derived("65520", kFp16),
            (Lines{"65520 = 1111111111110000 = 1.11111111111 × 2^15",
                   "the largest number is 65504; from 65520 on, half a step further, it is Inf",
                   "sign 0 for plus; exponent field all ones, fraction 0: infinity", "value inf"}));
  EXPECT_EQ(derived("-65519", kFp16)[1],
            "10 fraction bits hold 1.1111111111|01111: less than half way, down to 1.1111111111");
  EXPECT_EQ(derived("-65519", kFp16).back(), "neighbours -inf and -65472");
  EXPECT_EQ(derived("448", kE4m3).back(), "neighbours 416 and none");
  EXPECT_EQ(derived("1000", kE4m3)[1],
            "the largest number is 448; above 464, half a step further, it is NaN: the format has "
            "no Inf");
  EXPECT_EQ(derived("1000", kE4m3)[2],
            "sign 0 for plus; exponent field and fraction all ones: NaN");
  EXPECT_EQ(derived("1e99999", kFp16)[0], "the number is far beyond every format's range");
  EXPECT_EQ(derived("1e-99999", kFp16)[2], "value 0, under 0.001 ULP from 1e-99999");
}

TEST(Explanation, SaysWhatUnderflows) {
  EXPECT_EQ(derived("1e-8", kFp16)[1],
            "the smallest number is 2^-24 = 5.9604644775390625e-8; up to half of it, it is 0");
  EXPECT_EQ(derived("1e-8", kFp16)[2], "sign 0 for plus; exponent and fraction 0: zero");
  EXPECT_EQ(derived("1e-8", kFp16)[3], "value 0, 0.168 ULP from 1e-8");
  // 1e-7 × 2^24 = 1.6777216.
  EXPECT_EQ(derived("1e-7", kFp16)[1],
            "below 2^-14, the smallest normal number, the fraction counts 2^-24: 1.6777216, "
            "rounded to 2");
  EXPECT_EQ(derived("1e-7", kFp16)[2],
            "sign 0 for plus; exponent field 00000: denormal, no leading 1");
  EXPECT_EQ(derived("0x1.8p-23", kFp16)[1],
            "below 2^-14, the smallest normal number, the fraction counts 2^-24: 3");
  EXPECT_EQ(derived("-0x1.8p-23", kFp16)[1], derived("0x1.8p-23", kFp16)[1]);
  // Rounded up to the smallest normal number.
  EXPECT_EQ(derived("0x1.ffffp-15", kFp16)[2], "sign 0 for plus; exponent -14 + 15 = 1 = 00001");
}

TEST(Explanation, ExpressionsAreToldStepByStep) {
  const Lines lines = derived("2049+1", kFp16);
  EXPECT_EQ(lines[0], "2049 rounds to 2048");
  EXPECT_EQ(lines[1], "2048 + 1 = 2049, rounds to 2048");
  EXPECT_EQ(lines[2], "2049 = 100000000001 = 1.00000000001 × 2^11");
  EXPECT_EQ(lines[5], "value 2048, 1 ULP from the exact value, 2050");
  EXPECT_EQ(derived("0.5+0.25", kFp16)[0], "0.5 + 0.25 = 0.75");
  EXPECT_EQ(derived("65504*2", kFp16)[0], "65504 × 2 = 131008, overflows to inf");
  EXPECT_EQ(derived("1e5+1", kFp16)[0], "1e5 overflows to inf");
  EXPECT_EQ(derived("1e5+1", kFp16)[1], "inf + 1 is inf");
  EXPECT_EQ(derived("1e-8+0", kFp16)[0], "1e-8 underflows to 0");
  EXPECT_EQ(derived("0x1p-24/4", kFp16)[1],
            "5.9604644775390625e-8 / 4 = about 1.4901161193847656e-8, underflows to 0");
}

TEST(Explanation, NaNAndInfinityAndZeros) {
  EXPECT_EQ(derived("nan", kFp16),
            (Lines{"sign 0 for plus; exponent field all ones, fraction not 0: NaN", "value nan"}));
  EXPECT_EQ(
      derived("-inf", kFp16),
      (Lines{"sign 1 for minus; exponent field all ones, fraction 0: infinity", "value -inf"}));
  EXPECT_EQ(derived("-0", kFp16)[0], "sign 1 for minus; exponent and fraction 0: zero");
  EXPECT_EQ(derived("-0", kFp16)[1], "value -0, exactly");
}

TEST(Explanation, TheNumberIsShownAsItWasWrittenIfThatIsShort) {
  EXPECT_EQ(derived("0x1.8p3", kFp16)[0], "0x1.8p3 = 12 = 1100 = 1.1 × 2^3");
  EXPECT_EQ(derived("12.0", kFp16)[0], "12.0 = 1100 = 1.1 × 2^3");
  const Lines lines = derived("1.000000000000000000000001", kFp16);
  EXPECT_EQ(lines[0], "about 1 = 1.000000000000000... × 2^0");
  EXPECT_EQ(lines[3], "value 1, under 0.001 ULP from the exact value, about 1");
}

TEST(Explanation, LongDigitsAreCutInWordsAndWholeInDecimal) {
  const Explanation e = explanation_of("1e-300", kFp64);
  // By Python's decimal.Decimal(1e-300), which has 750 digits.
  const std::string begin = "1.00000000000000002505909183520875968569",
                    whole = decimal(kFp64, e.bits);
  EXPECT_TRUE(whole.starts_with(begin)) << whole;
  const Lines lines = derived("1e-300", kFp64);
  EXPECT_NE(lines[lines.size() - 3].find("…e-300 (750 digits, all with --json)"), std::string::npos)
      << lines[lines.size() - 3];
}

TEST(Explanation, ErrorsHaveThreeDigits) {
  EXPECT_EQ(ulp_text(0), "0");
  EXPECT_EQ(ulp_text(0.5), "0.5");
  EXPECT_EQ(ulp_text(0.3125), "0.312");
  EXPECT_EQ(ulp_text(1e-9), "under 0.001");
  EXPECT_EQ(ulp_text(1.1235e307), "1.12e+307");
}

}  // namespace
}  // namespace demi::number
