#include "lab/number/binary_text.h"

#include <gtest/gtest.h>

#include <string>

#include "lab/number/number_text.h"

namespace demi::number {
namespace {

ExactNumber number_of(const std::string& text) {
  std::size_t at = 0;
  return read_number(text, at).value;
}

TEST(BinaryText, WritesThePointWhereItStands) {
  EXPECT_EQ(positional_text(number_of("314.625")), "100111010.101");
  EXPECT_EQ(positional_text(number_of("12")), "1100");
  EXPECT_EQ(positional_text(number_of("0.15625")), "0.00101");
  EXPECT_EQ(positional_text(number_of("2.5")), "10.1");
}

TEST(BinaryText, LeavesLongNumbersAndNormalisedOnesToTheOtherForm) {
  EXPECT_EQ(positional_text(number_of("1.5")), "") << "1.1 is normalised";
  EXPECT_EQ(positional_text(number_of("0.1")), "") << "it never ends";
  // 2^60 + 2^-80, and a third: more digits than are looked at, the last of which is 0 and 1.
  EXPECT_EQ(positional_text(number_of("0x1000000000000000.00000000000000000001")), "");
  EXPECT_EQ(positional_text(number_of("0x1p39")), "1" + std::string(39, '0'));
  EXPECT_EQ(positional_text(number_of("0x1p40")), "");
  EXPECT_EQ(positional_text(number_of("0x1p-39")), "0." + std::string(38, '0') + "1");
  EXPECT_EQ(positional_text(number_of("0x1p-41")), "");
  EXPECT_EQ(positional_text(number_of("0x3p-41")), "");
  EXPECT_EQ(positional_text(number_of("2.0000000000000000000000000000000000000000000000001")), "");
}

TEST(BinaryText, NormalisesAndCutsWhatNeverEnds) {
  EXPECT_EQ(normalised_text(number_of("314.625"), 23), "1.00111010101 × 2^8");
  EXPECT_EQ(normalised_text(number_of("0.25"), 10), "1 × 2^-2");
  EXPECT_EQ(normalised_text(number_of("0.1"), 3), "1.10011001... × 2^-4");
  EXPECT_EQ(normalised_text(number_of("0x1.01p0"), 3), "1.00000001 × 2^0");
  EXPECT_EQ(normalised_text(number_of("0x1.008p0"), 3), "1.00000000... × 2^0");
  // 2 and something far behind 128 digits.
  EXPECT_EQ(normalised_text(number_of("2.0000000000000000000000000000000000000000000000001"), 3),
            "1... × 2^1");
}

TEST(BinaryText, SaysHowMuchIsCutOff) {
  const auto expect = [](const std::string& text, const std::string& kept,
                         const std::string& dropped, Rest rest) {
    const CutNumber cut = cut_after(number_of(text), 3);
    EXPECT_EQ(cut.kept, kept) << text;
    EXPECT_EQ(cut.dropped, dropped) << text;
    EXPECT_EQ(cut.rest, rest) << text;
  };
  expect("1", "1.000", "", Rest::kNone);
  expect("1.875", "1.111", "", Rest::kNone);
  expect("0x1.08p0", "1.000", "01", Rest::kLess);
  expect("0x1.1p0", "1.000", "1", Rest::kHalf);
  expect("0x1.18p0", "1.000", "11", Rest::kMore);
  expect("0x1.1008p0", "1.000", "10000...", Rest::kMore);
  expect("0x1.1" + std::string(40, '0') + "1p0", "1.000", "1...", Rest::kMore);
  expect("0x1.0" + std::string(40, '0') + "1p0", "1.000", "...", Rest::kLess);
  expect("0x1." + std::string(41, '0') + "1p0", "1.000", "...", Rest::kLess);
  EXPECT_EQ(cut_after(number_of("10"), 3).magnitude, 3);
}

}  // namespace
}  // namespace demi::number
