#include "demi/imported/size_expression.h"

#include <gtest/gtest.h>

#include <climits>

#include "demi/imported/symbolic.h"

namespace demi::imported {
namespace {

using Number = std::optional<std::int64_t>;

constexpr const char* kS0 = "Symbol('s0', positive=True, integer=True)";

Number value_of(const std::string& text, std::int64_t s0) {
  const std::optional<SizeExpression> expression = SizeExpression::parse(text);
  return expression ? expression->value({{"s0", s0}}) : std::nullopt;
}

// Texts of sympy.srepr, and the values that Python computes.
TEST(SizeExpression, HasTheValueThatPythonComputes) {
  const std::string s0 = kS0;
  EXPECT_EQ(value_of(s0, 7), 7);
  EXPECT_EQ(value_of("Mul(Integer(2), " + s0 + ")", 7), 14);
  EXPECT_EQ(value_of("Add(Mul(Integer(2), " + s0 + "), Integer(-1))", 7), 13);
  EXPECT_EQ(value_of("FloorDiv(Add(" + s0 + ", Integer(-3)), Integer(2))", 0), -2);  // (-3) // 2
  EXPECT_EQ(value_of("PythonMod(" + s0 + ", Integer(4))", 7), 3);
  EXPECT_EQ(value_of("Max(Integer(1), " + s0 + ", Integer(3))", 2), 3);
  EXPECT_EQ(value_of("Min(Integer(1), " + s0 + ")", 2), 1);
  EXPECT_EQ(value_of("Pow(" + s0 + ", Integer(2))", 5), 25);
}

TEST(SizeExpression, HasNoValueWherePythonHasNoneOrItIsNotKnown) {
  const std::string s0 = kS0;
  EXPECT_EQ(value_of("FloorDiv(Integer(1), Add(" + s0 + ", Integer(-1)))", 1), std::nullopt);
  EXPECT_EQ(value_of("Mul(" + s0 + ", Integer(4611686018427387904))", 4), std::nullopt);
  EXPECT_EQ(value_of("Symbol('s1', integer=True)", 1), std::nullopt);
  EXPECT_EQ(value_of("Unheard(" + s0 + ", Integer(1))", 1), std::nullopt);
}

TEST(SizeExpression, OfOtherTextIsNone) {
  for (const char* text : {"", "s0", "Integer()", "Integer(x)", "Integer(1", "Integer(1))", "Mul()",
                           "Symbol(s0)", "Symbol('s0'", "Integer(99999999999999999999)"})
    EXPECT_FALSE(SizeExpression::parse(text).has_value()) << text;
  std::string deep;
  for (int i = 0; i < 100'000; ++i) deep += "Mul(";
  EXPECT_FALSE(SizeExpression::parse(deep).has_value());
}

TEST(SizeExpression, NamesItsSymbolAndIsReadable) {
  const std::string s0 = kS0;
  EXPECT_EQ(SizeExpression::parse(s0)->symbol(), "s0");
  EXPECT_EQ(SizeExpression::parse("Mul(Integer(2), " + s0 + ")")->symbol(), "");
  EXPECT_EQ(SizeExpression::parse("Mul(Integer(2), " + s0 + ")")->text(), "2*s0");
}

// Python: -7 // 2 == -4, -7 % 2 == 1, 7 // -2 == -4, 7 % -2 == -1.
TEST(PythonIntegers, RoundDown) {
  EXPECT_EQ(floor_divide(-7, 2), -4);
  EXPECT_EQ(python_mod(-7, 2), 1);
  EXPECT_EQ(floor_divide(7, -2), -4);
  EXPECT_EQ(python_mod(7, -2), -1);
  EXPECT_EQ(floor_divide(6, 3), 2);
  EXPECT_EQ(floor_divide(LLONG_MIN, -1), std::nullopt);
  EXPECT_EQ(python_mod(LLONG_MIN, -1), 0);
  EXPECT_EQ(integer_power(2, 62), INT64_C(1) << 62);
  EXPECT_EQ(integer_power(2, 63), std::nullopt);
  EXPECT_EQ(integer_power(-1, 1'000'000'000'001), -1);
  EXPECT_EQ(integer_power(2, -1), std::nullopt);
}

c10::IValue call(const char* target, std::vector<c10::IValue> arguments) {
  return symbolic_function(target)(arguments).value_or(c10::IValue());
}

TEST(SymbolicFunctions, AreThoseOfPython) {
  EXPECT_EQ(call("_operator.floordiv", {-7, 2}).toInt(), -4);
  EXPECT_EQ(call("_operator.truediv", {7, 2}).toDouble(), 3.5);
  EXPECT_EQ(call("_operator.mul", {3, 0.5}).toDouble(), 1.5);
  EXPECT_EQ(call("_operator.add", {true, 1}).toInt(), 2);
  EXPECT_TRUE(call("_operator.ge", {2, 2}).toBool());
  EXPECT_FALSE(call("torch.sym_not", {true}).toBool());
  EXPECT_EQ(call("_operator.neg", {5}).toInt(), -5);
  EXPECT_EQ(call("math.ceil", {2.1}).toInt(), 3);
  EXPECT_EQ(call("torch.sym_int", {-2.9}).toInt(), -2);
  EXPECT_EQ(call("torch.sym_max", {2, 9}).toInt(), 9);
  EXPECT_EQ(call("torch.sym_ite", {false, 1, 2}).toInt(), 2);
  EXPECT_TRUE(call("_operator.floordiv", {1, 0}).isNone());
  EXPECT_TRUE(call("_operator.add", {1, "a"}).isNone());
  EXPECT_TRUE(call("torch.sym_int", {1e300}).isNone());
  EXPECT_TRUE(call("_operator.add", {}).isNone());
  EXPECT_EQ(symbolic_function("os.system"), nullptr);
}

}  // namespace
}  // namespace demi::imported
