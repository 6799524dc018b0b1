#include "lab/number/expression.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <sstream>
#include <string>

#include "demi/core/error.h"
#include "demi/core/source_dir_testing.h"
#include "lab/number/explanation.h"
#include "lab/number/formats_testing.h"

namespace demi::number {
namespace {

// One "FORMAT=BITS,ERROR" of a line.
void expect_result(const Expression& expression, const std::optional<ExactNumber>& exact,
                   const std::string& part) {
  const auto equals = part.find('='), comma = part.find(',');
  const Format& format = format_of(parse_dtype(part.substr(0, equals)));
  const Bits bits = std::stoull(part.substr(equals + 1, comma - equals - 1), nullptr, 16);
  const std::string error = part.substr(comma + 1);
  const Explanation e = explain(expression, exact, format);
  if (kind_of(format, bits) == Kind::kNaN) {
    EXPECT_EQ(kind_of(format, e.bits), Kind::kNaN) << expression.text() << " " << part;
  } else {
    EXPECT_EQ(e.bits, bits) << expression.text() << " " << part;
  }
  EXPECT_EQ(e.error_ulp.has_value(), error != "-") << expression.text() << " " << part;
  if (e.error_ulp && error != "-") {
    const double expected = std::strtod(error.c_str(), nullptr);
    EXPECT_NEAR(*e.error_ulp, expected, 1e-5 * expected + 1e-300)
        << expression.text() << " " << part;
  }
}

// tests/fixtures/numbers/make.py wrote the lines: Python's fractions, ml_dtypes and numpy.
TEST(Expression, EveryFormatComputesAsPythonDoes) {
  std::ifstream file(source_dir() / "tests/fixtures/numbers/expressions.txt");
  int lines = 0;
  for (std::string line; std::getline(file, line); ++lines) {
    const Expression expression(line.substr(0, line.find('\t')));
    const auto exact = expression.exact_value();
    std::istringstream parts(line.substr(line.find('\t') + 1));
    int formats = 0;
    for (std::string part; parts >> part; ++formats) expect_result(expression, exact, part);
    EXPECT_EQ(formats, 7);
  }
  EXPECT_GE(lines, 280);
}

std::string value_in(const Format& format, const std::string& text) {
  const Expression expression(text);
  return shown(format, expression.evaluate(format).bits);
}

// The examples of every course on mixed precision.
TEST(Expression, Fp16SwampsUnderflowsAndOverflows) {
  EXPECT_EQ(value_in(kFp16, "2049+1"), "2048");
  EXPECT_EQ(value_in(kFp16, "0.0001*0.0001"), "0");
  EXPECT_EQ(value_in(kFp16, "65520"), "inf");
  EXPECT_EQ(value_in(kFp16, "65519"), "65504");
  EXPECT_EQ(value_in(kFp16, "1e-8"), "0");
  EXPECT_EQ(value_in(kE4m3, "65520"), "nan");
}

TEST(Expression, BlanksMayStandBetweenItsParts) {
  EXPECT_EQ(value_in(kFp32, " 2049 +\t1 "), "2050");
  EXPECT_EQ(value_in(kFp32, "( 1 + 2 ) * - 3"), "-9");
}

TEST(Expression, EachRoundingIsAStep) {
  const auto value = Expression("2049+1*-0.1").evaluate(kFp16);
  ASSERT_EQ(value.steps.size(), 5U);
  const char* texts[] = {"2049", "1", "0.1", "1 × (-0.0999755859375)", "2048 + (-0.0999755859375)"};
  const Outcome outcomes[] = {Outcome::kRounded, Outcome::kExact, Outcome::kRounded,
                              Outcome::kExact, Outcome::kRounded};
  for (std::size_t i = 0; i < 5; ++i) {
    EXPECT_EQ(value.steps[i].text, texts[i]);
    EXPECT_EQ(value.steps[i].outcome, outcomes[i]) << i;
    EXPECT_EQ(value.steps[i].is_operation, i >= 3);
  }
}

Outcome outcome_in(const Format& format, const std::string& text) {
  const Expression expression(text);
  return explain(expression, expression.exact_value(), format).outcome;
}

TEST(Expression, SaysWhatBecameOfTheValue) {
  EXPECT_EQ(outcome_in(kFp16, "1.5"), Outcome::kExact);
  EXPECT_EQ(outcome_in(kFp16, "0"), Outcome::kExact);
  EXPECT_EQ(outcome_in(kFp16, "0.1"), Outcome::kRounded);
  EXPECT_EQ(outcome_in(kFp16, "1e-6"), Outcome::kDenormal);
  EXPECT_EQ(outcome_in(kFp16, "0x1p-24"), Outcome::kDenormal);
  EXPECT_EQ(outcome_in(kFp16, "1e-8"), Outcome::kUnderflow);
  EXPECT_EQ(outcome_in(kFp16, "1e5"), Outcome::kOverflow);
  EXPECT_EQ(outcome_in(kFp16, "1e99999"), Outcome::kOverflow);
  EXPECT_EQ(outcome_in(kFp16, "1e-99999"), Outcome::kUnderflow);
  EXPECT_EQ(outcome_in(kE4m3, "1e5"), Outcome::kOverflow) << "though it is NaN";
  EXPECT_EQ(outcome_in(kFp16, "inf"), Outcome::kInfinity);
  EXPECT_EQ(outcome_in(kFp16, "1/0"), Outcome::kInfinity);
  EXPECT_EQ(outcome_in(kFp16, "nan"), Outcome::kNaN);
  EXPECT_EQ(outcome_in(kFp16, "0/0"), Outcome::kNaN);
  EXPECT_EQ(outcome_in(kFp16, "65504*2-65504"), Outcome::kOverflow);
  EXPECT_EQ(outcome_in(kFp16, "1e5-1e5"), Outcome::kOverflow) << "Inf - Inf";
  EXPECT_EQ(outcome_in(kFp16, "0.0001*0.0001*1"), Outcome::kUnderflow);
  EXPECT_EQ(outcome_in(kFp16, "1+1e-4-1"), Outcome::kRounded) << "swamped: nothing underflowed";
  EXPECT_EQ(outcome_in(kFp16, "2049-2048"), Outcome::kRounded) << "0 for 1";
  EXPECT_EQ(outcome_in(kFp16, "1/2"), Outcome::kExact);
}

TEST(Expression, AnExactValueThatGrowsTooLongIsLeftOut) {
  std::string text = "1e4999";
  for (int i = 0; i < 40; ++i) text += "*1e4999";
  EXPECT_FALSE(Expression(text).exact_value());
  EXPECT_EQ(value_in(kFp32, text), "inf");
  EXPECT_FALSE(Expression("1e6000*1e-6000").exact_value()) << "not known";
  EXPECT_TRUE(Expression("1e4000*1e-4000").exact_value());
  EXPECT_FALSE(Expression("1/0").exact_value());
  EXPECT_FALSE(Expression("1/(1-1)").exact_value());
  EXPECT_FALSE(Expression("inf").exact_value());
}

void expect_refused(const std::string& text, const std::string& words) {
  try {
    const Expression read(text);
    FAIL() << text;
  } catch (const UsageError& error) {
    EXPECT_NE(std::string(error.what()).find(words), std::string::npos) << error.what();
  }
}

TEST(Expression, SaysWhereItCannotReadOn) {
  expect_refused("", "a number is expected at position 1");
  expect_refused("1+", "a number is expected at position 3");
  expect_refused("1++", "a number is expected at position 4");
  expect_refused("1 2", "an operator is expected at position 3");
  expect_refused("1.2.3", "an operator is expected at position 4");
  expect_refused("1,5", "an operator is expected at position 2");
  expect_refused("(1+2", "a closing parenthesis is missing at position 5");
  expect_refused("1)", "an operator is expected at position 2");
  expect_refused("()", "a number is expected at position 2");
  expect_refused("2**3", "a number is expected at position 3");
  expect_refused("2^3", "an operator is expected at position 2");
  expect_refused(std::string(100000, '('), "more than 200 parentheses are open at position 202");
}

TEST(Expression, ManySignsAndTermsAreNoProblem) {
  EXPECT_EQ(value_in(kFp32, std::string(100000, '-') + "1"), "1");
  std::string ones = "1";
  for (int i = 1; i < 4096; ++i) ones += "+1";
  EXPECT_EQ(value_in(kFp16, ones), "2048") << "2048 + 1 is 2048 for ever";
  EXPECT_EQ(value_in(kFp32, ones), "4096");
  std::string groups = "(1)";
  for (int i = 1; i < 300; ++i) groups += "+(1)";
  EXPECT_EQ(value_in(kFp32, groups), "300") << "closed parentheses are not deep";
}

}  // namespace
}  // namespace demi::number
