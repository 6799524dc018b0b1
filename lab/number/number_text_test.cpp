#include "lab/number/number_text.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <random>
#include <string>
#include <vector>

#include "demi/core/error.h"
#include "lab/number/formats_testing.h"

namespace demi::number {
namespace {

Literal read_all(const std::string& text) {
  std::size_t at = 0;
  Literal literal = read_number(text, at);
  EXPECT_EQ(at, text.size()) << text;
  return literal;
}

double read_double(const std::string& text) {
  return double_of(kFp64, round_to(kFp64, read_all(text).value));
}

TEST(NumberText, ReadsDecimalAndHexadecimalNumbers) {
  EXPECT_EQ(read_double("314.625"), 314.625);
  EXPECT_EQ(read_double("0"), 0);
  EXPECT_EQ(read_double("000.500"), 0.5);
  EXPECT_EQ(read_double(".5"), 0.5);
  EXPECT_EQ(read_double("5."), 5);
  EXPECT_EQ(read_double("1e3"), 1000);
  EXPECT_EQ(read_double("1E+3"), 1000);
  EXPECT_EQ(read_double("1e-3"), 0.001);
  EXPECT_EQ(read_double("0x10"), 16);
  EXPECT_EQ(read_double("0x1.8p3"), 12);
  EXPECT_EQ(read_double("0X.8P-1"), 0.25);
  EXPECT_EQ(read_double("0xAbC"), 0xABC);
  EXPECT_EQ(read_double("0x123456789abcdef01"), 0x1.23456789abcdfp64);
}

TEST(NumberText, ReadsWordsInAnyLetterCase) {
  for (const char* text : {"inf", "Inf", "INFINITY"})
    EXPECT_EQ(read_all(text).kind, Kind::kInfinity) << text;
  for (const char* text : {"nan", "NaN"}) EXPECT_EQ(read_all(text).kind, Kind::kNaN) << text;
}

TEST(NumberText, StopsBehindTheNumber) {
  std::size_t at = 2;
  EXPECT_EQ(to_decimal(read_number("1+25*3", at).value), "25");
  EXPECT_EQ(at, 4U);
}

TEST(NumberText, HugeExponentsAreLargeOrSmallAndNeverLong) {
  const std::string nines(400, '9');
  for (const std::string& text :
       std::vector<std::string>{"1e5001", "1e" + nines, "0x1p99999999999999999999", "7e+999999"}) {
    const Literal literal = read_all(text);
    EXPECT_TRUE(literal.is_stand_in) << text;
    EXPECT_EQ(round_to(kFp64, literal.value), overflow(kFp64)) << text;
  }
  for (const std::string& text :
       std::vector<std::string>{"1e-5001", "1e-" + nines, "0x1p-99999999999999999999"}) {
    const Literal literal = read_all(text);
    EXPECT_TRUE(literal.is_stand_in) << text;
    EXPECT_FALSE(literal.value.is_zero()) << text;
    EXPECT_EQ(round_to(kFp64, literal.value), 0U) << text;
  }
  EXPECT_EQ(read_double("0e" + nines), 0);
  EXPECT_EQ(read_double("0x0p" + nines), 0);
  // The digits make up for the exponent.
  const std::string zeros(10000, '0');
  EXPECT_EQ(read_double("1" + zeros + "e-10000"), 1);
  EXPECT_EQ(read_double("0." + zeros + "1e10001"), 1);
  EXPECT_EQ(read_double("0x1" + zeros + "p-40000"), 1);
  EXPECT_EQ(read_double("0x0." + zeros + "1p40004"), 1);
}

TEST(NumberText, AHundredThousandDigitsAreRead) {
  EXPECT_EQ(read_double(std::string("0.") + std::string(100000, '3')), 1.0 / 3);
  EXPECT_EQ(read_double(std::string(100000, '9') + "e-100000"), 1);
  EXPECT_EQ(read_double(std::string("0x0.") + std::string(100000, '5')), 1.0 / 3);
}

void expect_refused(const std::string& text, std::size_t at, const std::string& words) {
  try {
    read_number(text, at);
    FAIL() << text;
  } catch (const UsageError& error) {
    const std::string message = error.what();
    EXPECT_NE(message.find(words), std::string::npos) << message;
    EXPECT_NE(message.find("accepted: numbers such as 1, -2.5, 1e-8, 0x1.8p-3"), std::string::npos)
        << message;
  }
}

TEST(NumberText, SaysWhereItCannotReadOn) {
  expect_refused("", 0, "a number is expected at position 1; seen: ''");
  expect_refused("abc", 0, "a number is expected at position 1; seen: 'abc'");
  expect_refused(".", 0, "a number is expected at position 2");
  expect_refused("0x", 0, "a number is expected at position 3");
  expect_refused("0xp3", 0, "a number is expected at position 3");
  expect_refused("1e", 0, "an exponent needs a digit at position 3");
  expect_refused("1e+", 0, "an exponent needs a digit at position 4");
  expect_refused("0x1p", 0, "an exponent needs a digit at position 5");
  expect_refused("infx", 0, "a number is expected at position 1");
  expect_refused("1+x", 2, "a number is expected at position 3; seen: '1+x'");
  expect_refused("é+x", 3, "a number is expected at position 3; seen: 'é+x'");
  expect_refused("1\x1b[31m\n", 1, "a number is expected at position 2; seen: '1?[31m?'");
  // An é where the excerpt is cut stays whole.
  expect_refused("1111é1111111111111111111+x", 25, "seen: '...é1111111111111111111+x'");
  expect_refused("x111111111111111111é1111", 0, "seen: 'x111111111111111111é...'");
  const std::string ones(100, '1');
  expect_refused(
      ones + "+x" + ones, 101,
      "at position 102; seen: '..." + ones.substr(0, 19) + "+x" + ones.substr(0, 19) + "...'");
}

std::string printed(const char* form, int digits, double value) {
  std::string text(1500, '\0');
  text.resize(
      static_cast<std::size_t>(std::snprintf(text.data(), text.size(), form, digits, value)));
  return text;
}

// The same digits in the C library's form: d.ddde+XX.
std::string scientific(std::string text) {
  const bool negative = text.starts_with('-');
  if (negative) text.erase(0, 1);
  int exponent = 0;
  if (const auto e = text.find('e'); e != std::string::npos) {
    exponent = std::stoi(text.substr(e + 1));
    text.resize(e);
  }
  const auto point = std::min(text.find('.'), text.size());
  exponent += static_cast<int>(point) - 1;
  if (point < text.size()) text.erase(point, 1);
  const auto first = text.find_first_not_of('0');
  if (first == std::string::npos) return negative ? "-0" : "0";
  text = text.substr(first, text.find_last_not_of('0') + 1 - first);
  text.append("e").append(std::to_string(exponent - static_cast<int>(first)));
  return negative ? text.insert(0, 1, '-') : text;
}

TEST(NumberText, WritesAllDigitsOrSomeAsTheCLibraryDoes) {
  std::mt19937_64 random(6);
  for (int i = 0; i < 6000; ++i) {
    const std::uint64_t bits = i % 5 == 0  ? random() & 0x800FFFFFFFFFFFFF
                               : i % 5 < 3 ? (random() & 0x81FFFFFFFFFFFFFF) | 0x3E00000000000000
                                           : random();
    const auto value = std::bit_cast<double>(bits);
    if (!std::isfinite(value)) continue;
    const ExactNumber exact = value_of(kFp64, bits);
    ASSERT_EQ(scientific(to_decimal(exact)), scientific(printed("%.*e", 1200, value)));
    const int digits = 1 + i % 18;
    const std::string rounded = printed("%.*e", digits - 1, value);
    ASSERT_EQ(scientific(round_to_decimal(exact, digits).text), scientific(rounded)) << digits;
    ASSERT_EQ(round_to_decimal(exact, digits).is_exact,
              scientific(rounded) == scientific(printed("%.*e", 1200, value)));
  }
}

TEST(NumberText, LaysDigitsOutAsPeopleDo) {
  const auto exact = [](const std::string& text) { return to_decimal(read_all(text).value); };
  EXPECT_EQ(exact("0"), "0");
  EXPECT_EQ(exact("0x1p0"), "1");
  EXPECT_EQ(exact("65504"), "65504");
  EXPECT_EQ(exact("0x1.8p1"), "3");
  EXPECT_EQ(exact("0x1p-1"), "0.5");
  EXPECT_EQ(exact("0x1.8p-3"), "0.1875");
  EXPECT_EQ(exact("0x3p-1"), "1.5");
  EXPECT_EQ(exact("0x1p-19"), "0.0000019073486328125");
  EXPECT_EQ(exact("0x1p-20"), "9.5367431640625e-7");
  EXPECT_EQ(exact("0x1p69"), "590295810358705651712");
  EXPECT_EQ(exact("0x1p70"), "1.180591620717411303424e21");
  EXPECT_EQ(exact("100"), "100");
  const auto rounded = [](const std::string& text, int digits) {
    return round_to_decimal(read_all(text).value, digits).text;
  };
  EXPECT_EQ(rounded("0.1", 3), "0.1");
  EXPECT_EQ(rounded("0.99999", 3), "1");
  EXPECT_EQ(rounded("0.0999996", 5), "0.1");
  EXPECT_EQ(rounded("123456", 2), "120000");
  EXPECT_EQ(rounded("12.5", 2), "12") << "a tie goes to the even digit";
  EXPECT_EQ(rounded("13.5", 2), "14");
  EXPECT_EQ(rounded("12.500000000000000000000000000000000000000001", 2), "13");
  EXPECT_EQ(rounded("1e-8", 9), "1e-8");
  EXPECT_EQ(rounded("0", 5), "0");
  EXPECT_TRUE(round_to_decimal(read_all("1.25").value, 18).is_exact);
  EXPECT_FALSE(round_to_decimal(read_all("1." + std::string(60, '0') + "1").value, 18).is_exact);
  ExactNumber negative = read_all("0").value;
  negative.negative = true;
  EXPECT_EQ(to_decimal(negative), "-0");
}

}  // namespace
}  // namespace demi::number
