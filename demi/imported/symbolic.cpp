#include "demi/imported/symbolic.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

namespace demi::imported {
namespace {

using c10::IValue;
using Values = c10::ArrayRef<IValue>;
using Result = std::optional<IValue>;

bool is_integer(const IValue& value) { return value.isInt() || value.isBool(); }
std::int64_t as_integer(const IValue& value) {
  return value.isBool() ? static_cast<std::int64_t>(value.toBool()) : value.toInt();
}
bool is_number(const IValue& value) { return is_integer(value) || value.isDouble(); }
double as_double(const IValue& value) {
  return value.isDouble() ? value.toDouble() : static_cast<double>(as_integer(value));
}

Result wrap(std::optional<std::int64_t> number) {
  return number ? Result(IValue(*number)) : std::nullopt;
}

/// An operation on two numbers: on integers if both are, else on doubles.
template <class Integers, class Doubles>
Result binary(Values v, const Integers& integers, const Doubles& doubles) {
  if (v.size() != 2 || !is_number(v[0]) || !is_number(v[1])) return std::nullopt;
  if (is_integer(v[0]) && is_integer(v[1])) return integers(as_integer(v[0]), as_integer(v[1]));
  return doubles(as_double(v[0]), as_double(v[1]));
}

template <class Compare>
Result compare(Values v, const Compare& compare) {
  return binary(
      v, [&](std::int64_t a, std::int64_t b) { return Result(IValue(bool{compare(a, b)})); },
      [&](double a, double b) { return Result(IValue(bool{compare(a, b)})); });
}

template <bool (*Overflows)(std::int64_t, std::int64_t, std::int64_t*), class Doubles>
Result arithmetic(Values v, const Doubles& doubles) {
  return binary(
      v,
      [](std::int64_t a, std::int64_t b) {
        std::int64_t result = 0;
        return Overflows(a, b, &result) ? Result() : Result(IValue(result));
      },
      [&](double a, double b) { return Result(IValue(doubles(a, b))); });
}

bool add_overflows(std::int64_t a, std::int64_t b, std::int64_t* to) {
  return __builtin_add_overflow(a, b, to);
}
bool sub_overflows(std::int64_t a, std::int64_t b, std::int64_t* to) {
  return __builtin_sub_overflow(a, b, to);
}
bool mul_overflows(std::int64_t a, std::int64_t b, std::int64_t* to) {
  return __builtin_mul_overflow(a, b, to);
}

Result add(Values v) {
  return arithmetic<add_overflows>(v, [](double a, double b) { return a + b; });
}
Result sub(Values v) {
  return arithmetic<sub_overflows>(v, [](double a, double b) { return a - b; });
}
Result mul(Values v) {
  return arithmetic<mul_overflows>(v, [](double a, double b) { return a * b; });
}
Result floordiv(Values v) {
  return binary(
      v, [](std::int64_t a, std::int64_t b) { return wrap(floor_divide(a, b)); },
      [](double a, double b) { return b == 0 ? Result() : Result(IValue(std::floor(a / b))); });
}
Result mod(Values v) {
  return binary(
      v, [](std::int64_t a, std::int64_t b) { return wrap(python_mod(a, b)); },
      [](double a, double b) {
        return b == 0 ? Result() : Result(IValue(a - b * std::floor(a / b)));
      });
}
Result truediv(Values v) {
  if (v.size() != 2 || !is_number(v[0]) || !is_number(v[1]) || as_double(v[1]) == 0)
    return std::nullopt;
  return IValue(as_double(v[0]) / as_double(v[1]));
}
Result pow(Values v) {
  return binary(
      v, [](std::int64_t a, std::int64_t b) { return wrap(integer_power(a, b)); },
      [](double a, double b) { return Result(IValue(std::pow(a, b))); });
}

Result eq(Values v) {
  return compare(v, [](auto a, auto b) { return a == b; });
}
Result ne(Values v) {
  return compare(v, [](auto a, auto b) { return a != b; });
}
Result lt(Values v) {
  return compare(v, [](auto a, auto b) { return a < b; });
}
Result le(Values v) {
  return compare(v, [](auto a, auto b) { return a <= b; });
}
Result gt(Values v) {
  return compare(v, [](auto a, auto b) { return a > b; });
}
Result ge(Values v) {
  return compare(v, [](auto a, auto b) { return a >= b; });
}

Result max(Values v) {
  return binary(
      v, [](std::int64_t a, std::int64_t b) { return Result(IValue(std::max(a, b))); },
      [](double a, double b) { return Result(IValue(std::max(a, b))); });
}
Result min(Values v) {
  return binary(
      v, [](std::int64_t a, std::int64_t b) { return Result(IValue(std::min(a, b))); },
      [](double a, double b) { return Result(IValue(std::min(a, b))); });
}

Result logical_and(Values v) {
  if (v.size() != 2 || !is_integer(v[0]) || !is_integer(v[1])) return std::nullopt;
  if (v[0].isBool() && v[1].isBool()) return IValue(v[0].toBool() && v[1].toBool());
  return IValue(as_integer(v[0]) & as_integer(v[1]));
}
Result logical_or(Values v) {
  if (v.size() != 2 || !is_integer(v[0]) || !is_integer(v[1])) return std::nullopt;
  if (v[0].isBool() && v[1].isBool()) return IValue(v[0].toBool() || v[1].toBool());
  return IValue(as_integer(v[0]) | as_integer(v[1]));
}
Result logical_not(Values v) {
  if (v.size() != 1 || !is_number(v[0])) return std::nullopt;
  return IValue(as_double(v[0]) == 0);
}

Result neg(Values v) {
  const IValue zero = v.size() == 1 && v[0].isDouble() ? IValue(-0.0) : IValue(std::int64_t{0});
  if (v.size() != 1) return std::nullopt;
  const IValue both[] = {zero, v[0]};
  return sub(both);
}
Result pos(Values v) { return v.size() == 1 && is_number(v[0]) ? Result(v[0]) : std::nullopt; }

template <double (*Round)(double)>
Result to_integer(Values v) {
  if (v.size() != 1 || !is_number(v[0])) return std::nullopt;
  if (is_integer(v[0])) return IValue(as_integer(v[0]));
  const double rounded = Round(v[0].toDouble());
  constexpr double kLimit = 9223372036854775808.0;  // 2^63
  if (!(rounded >= -kLimit && rounded < kLimit)) return std::nullopt;
  return IValue(static_cast<std::int64_t>(rounded));
}
double truncate(double x) { return std::trunc(x); }
double round_up(double x) { return std::ceil(x); }
double round_down(double x) { return std::floor(x); }

Result to_double(Values v) {
  return v.size() == 1 && is_number(v[0]) ? Result(IValue(as_double(v[0]))) : std::nullopt;
}
Result square_root(Values v) {
  if (v.size() != 1 || !is_number(v[0]) || as_double(v[0]) < 0) return std::nullopt;
  return IValue(std::sqrt(as_double(v[0])));
}
Result if_then_else(Values v) {
  if (v.size() != 3 || !is_number(v[0])) return std::nullopt;
  return as_double(v[0]) != 0 ? v[1] : v[2];
}

constexpr std::pair<std::string_view, SymbolicFunction> kFunctions[] = {
    {"_operator.add", add},
    {"_operator.sub", sub},
    {"_operator.mul", mul},
    {"_operator.floordiv", floordiv},
    {"_operator.mod", mod},
    {"_operator.truediv", truediv},
    {"_operator.pow", pow},
    {"_operator.eq", eq},
    {"_operator.ne", ne},
    {"_operator.lt", lt},
    {"_operator.le", le},
    {"_operator.gt", gt},
    {"_operator.ge", ge},
    {"_operator.neg", neg},
    {"_operator.pos", pos},
    {"_operator.and_", logical_and},
    {"_operator.or_", logical_or},
    {"torch.sym_not", logical_not},
    {"torch.sym_max", max},
    {"torch.sym_min", min},
    {"torch.sym_int", to_integer<truncate>},
    {"torch.sym_float", to_double},
    {"torch.sym_ite", if_then_else},
    {"torch.sym_sqrt", square_root},
    {"torch._sym_sqrt", square_root},
    {"math.trunc", to_integer<truncate>},
    {"math.ceil", to_integer<round_up>},
    {"math.floor", to_integer<round_down>},
};

}  // namespace

std::optional<std::int64_t> floor_divide(std::int64_t a, std::int64_t b) {
  if (b == 0 || (b == -1 && a == std::numeric_limits<std::int64_t>::min())) return std::nullopt;
  return a / b - (a % b != 0 && (a < 0) != (b < 0) ? 1 : 0);
}

std::optional<std::int64_t> python_mod(std::int64_t a, std::int64_t b) {
  if (b == 0) return std::nullopt;
  if (b == -1) return 0;
  const std::int64_t rest = a % b;
  return rest != 0 && (rest < 0) != (b < 0) ? rest + b : rest;
}

std::optional<std::int64_t> integer_power(std::int64_t base, std::int64_t exponent) {
  if (exponent < 0) return std::nullopt;
  std::int64_t result = 1;
  if (base == 0 || base == 1 || base == -1)
    return exponent == 0 ? 1 : base == -1 && exponent % 2 == 0 ? 1 : base;
  for (; exponent > 0; --exponent)  // at most 63 times, before it overflows
    if (__builtin_mul_overflow(result, base, &result)) return std::nullopt;
  return result;
}

SymbolicFunction symbolic_function(std::string_view target) {
  const auto* const found =
      std::ranges::find(kFunctions, target, [](const auto& e) { return e.first; });
  return found == std::end(kFunctions) ? nullptr : found->second;
}

}  // namespace demi::imported
