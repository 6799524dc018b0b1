#include "lab/number/explanation.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "lab/number/binary_text.h"

namespace demi::number {
namespace {

bool has(const std::vector<Step>& steps, Outcome outcome) {
  return std::ranges::any_of(steps, [&](const Step& step) { return step.outcome == outcome; });
}

// The outcome of all steps together, given how the result compares with the exact value.
Outcome whole_outcome(const Format& format, const Expression::Value& value,
                      const std::optional<ExactNumber>& exact) {
  const Outcome last = value.steps.back().outcome;
  if (!is_finite(format, value.bits)) {
    if (has(value.steps, Outcome::kOverflow)) return Outcome::kOverflow;
    return outcome_of(format, value.bits, std::nullopt);
  }
  const Outcome outcome = exact ? outcome_of(format, value.bits, exact) : last;
  // 1 + 1e-8 - 1 is 0 because 1 is large, and not because 1e-8 is small.
  if (outcome == Outcome::kUnderflow && !has(value.steps, Outcome::kUnderflow))
    return Outcome::kRounded;
  return outcome;
}

std::string power_text(std::int64_t exponent) { return fmt::format("2^{}", exponent); }

ExactNumber magnitude(ExactNumber x) {
  x.negative = false;
  return x;
}

bool is_short(std::string_view text) {
  constexpr std::size_t kLongest = 24;
  return text.size() <= kLongest;
}

// The number that was rounded last, as people write it, without its sign.
std::string source_text(const Expression& expression, const Explanation& e) {
  const std::string value = shown(magnitude(*e.rounded_from));
  const std::string& written = e.steps.back().text;
  if (!expression.is_number() || !is_short(written)) return value;
  const bool is_hexadecimal = written.find_first_of("xX") != std::string::npos;
  return is_hexadecimal ? written + " = " + value : written;
}

bool is_below_normal(const Format& format, const ExactNumber& x) {
  return leading_bits(x).magnitude() < 1 - format.bias;
}

std::size_t significant_digits(std::string_view decimal) {
  decimal = decimal.substr(0, decimal.find('e'));
  const std::size_t first = decimal.find_first_of("123456789");
  return static_cast<std::size_t>(
      std::ranges::count_if(decimal.substr(std::min(first, decimal.size())),
                            [](char c) { return c >= '0' && c <= '9'; }));
}

std::string effect(const Step& step, const Format& format) {
  const std::string value = shown(format, step.result.bits);
  switch (step.outcome) {
    case Outcome::kExact:
      return " = " + value;
    case Outcome::kInfinity:
    case Outcome::kNaN:
      return " is " + value;
    default:
      break;
  }
  const std::string exact =
      step.is_operation ? fmt::format(" = {},", shown(*step.result.exact)) : "";
  switch (step.outcome) {
    case Outcome::kOverflow:
      return fmt::format("{} overflows to {}", exact, value);
    case Outcome::kUnderflow:
      return fmt::format("{} underflows to {}", exact, value);
    default:
      return fmt::format("{} rounds to {}", exact, value);
  }
}

// A line for each operation, and for each of its numbers that is not exact.
void add_steps(std::vector<std::string>& lines, const Explanation& e) {
  for (const Step& step : e.steps) {
    if (step.is_operation || step.outcome != Outcome::kExact)
      lines.push_back(step.text + effect(step, *e.format));
  }
}

void add_binary(std::vector<std::string>& lines, const std::string& source, const ExactNumber& x,
                int digits) {
  std::string line = source;
  if (const std::string written = positional_text(x); !written.empty()) line += " = " + written;
  line += " = " + normalised_text(x, digits);
  lines.push_back(std::move(line));
}

// A normal result of a number that is not below the normal ones.
void add_rounding(std::vector<std::string>& lines, const Explanation& e) {
  const Format& format = *e.format;
  const CutNumber cut = cut_after(*e.rounded_from, format.fraction_bits);
  if (cut.rest == Rest::kNone) return;
  const Fields fields = fields_of(format, e.bits);
  const std::int64_t exponent = static_cast<std::int64_t>(fields.exponent) - format.bias;
  const ExactNumber change =
      sum(magnitude(value_of(format, e.bits)), negated(magnitude(*e.rounded_from)));
  const char* where = cut.rest == Rest::kHalf   ? "half way, so to the even one"
                      : cut.rest == Rest::kLess ? "less than half way"
                                                : "more than half way";
  std::string result =
      fmt::format("1.{:0{}b}", fields.fraction, static_cast<std::size_t>(format.fraction_bits));
  if (exponent != cut.magnitude) result += fmt::format(" × {}", power_text(exponent));
  const char* hold = format.fraction_bits == 1 ? "bit holds" : "bits hold";
  lines.push_back(fmt::format("{} fraction {} {}|{}: {}, {} to {}", format.fraction_bits, hold,
                              cut.kept, cut.dropped, where, change.negative ? "down" : "up",
                              result));
}

void add_exponent(std::vector<std::string>& lines, const Format& format, Bits bits) {
  const Fields fields = fields_of(format, bits);
  const std::string field =
      fmt::format("{:0{}b}", fields.exponent, static_cast<std::size_t>(format.exponent_bits));
  const auto biased = static_cast<std::int64_t>(fields.exponent);
  const std::int64_t exponent = biased - format.bias;
  std::string line = fmt::format("sign {} for {}; ", fields.sign, fields.sign ? "minus" : "plus");
  switch (kind_of(format, bits)) {
    case Kind::kZero:
      line += "exponent and fraction 0: zero";
      break;
    case Kind::kSubnormal:
      line += fmt::format("exponent field {}: denormal, no leading 1", field);
      break;
    case Kind::kNormal:
      line += fmt::format("exponent {} + {} = {} = {}", exponent, format.bias, biased, field);
      break;
    case Kind::kInfinity:
      line += "exponent field all ones, fraction 0: infinity";
      break;
    case Kind::kNaN:
      line += format.has_infinity ? "exponent field all ones, fraction not 0: NaN"
                                  : "exponent field and fraction all ones: NaN";
  }
  lines.push_back(std::move(line));
}

void add_limits(std::vector<std::string>& lines, const Explanation& e) {
  const Format& format = *e.format;
  const std::int64_t smallest = 1 - format.bias - format.fraction_bits;
  const Outcome outcome = outcome_of(format, e.bits, e.rounded_from);
  const std::string steps_of = power_text(smallest);
  if (outcome == Outcome::kOverflow) {
    const ExactNumber largest = value_of(format, largest_finite(format));
    const ExactNumber half = power_of_two(log2_ulp(format, largest) - 1);
    const std::string limit = shown(sum(largest, half));
    lines.push_back("the largest number is " + shown(largest) +
                    (!format.has_nan
                         ? fmt::format("; from {} on, half a step further, the number saturates: "
                                       "the format has neither Inf nor NaN",
                                       limit)
                     : format.has_infinity
                         ? fmt::format("; from {} on, half a step further, it is Inf", limit)
                         : fmt::format("; above {}, half a step further, it is NaN: the format has "
                                       "no Inf",
                                       limit)));
  } else if (outcome == Outcome::kUnderflow) {
    lines.push_back(fmt::format("the smallest number is {} = {}; up to half of it, it is 0",
                                steps_of, shown(power_of_two(smallest))));
  } else if (is_below_normal(format, *e.rounded_from)) {
    ExactNumber units = magnitude(*e.rounded_from);
    units.exponent -= smallest;
    const bool is_exact = error_in_ulp(format, e.bits, *e.rounded_from) == 0;
    const std::string rounded =
        is_exact ? "" : fmt::format(", rounded to {}", with_sign(format, e.bits, false));
    lines.push_back(
        fmt::format("below {}, the smallest normal number, the fraction counts {}: {}{}",
                    power_text(1 - format.bias), steps_of, shown(units), rounded));
  }
}

void add_value(std::vector<std::string>& lines, const Expression& expression,
               const Explanation& e) {
  constexpr std::size_t kMostDigits = 80, kShown = 40;
  const Format& format = *e.format;
  if (!is_finite(format, e.bits)) {
    lines.push_back("value " + shown(format, e.bits));
    return;
  }
  const ExactNumber value = value_of(format, e.bits);
  std::string text = to_decimal(value);
  if (text.size() > kMostDigits) {
    const std::size_t exponent = std::min(text.find('e'), text.size());
    text = fmt::format("{}…{} ({} digits, all with --json)", text.substr(0, kShown),
                       text.substr(exponent), significant_digits(text));
  }
  std::string line = "value " + text;
  if (e.error_ulp && *e.error_ulp != 0) {
    line += fmt::format(", {} ULP from {}", ulp_text(*e.error_ulp),
                        expression.is_number() && is_short(expression.text())
                            ? expression.text()
                            : "the exact value, " + shown(*e.exact));
  } else if (e.error_ulp) {
    line += ", exactly";
  }
  lines.push_back(std::move(line));
  if (kind_of(format, e.bits) != Kind::kZero || e.outcome != Outcome::kExact) {
    lines.push_back(fmt::format("ULP {} = {}", power_text(log2_ulp(format, value)),
                                shown(power_of_two(log2_ulp(format, value)))));
  }
  const auto neighbour = [&](Bits bits) {
    return bits == e.bits ? std::string("none") : shown(format, bits);
  };
  lines.push_back(fmt::format("neighbours {} and {}", neighbour(next_down(format, e.bits)),
                              neighbour(next_up(format, e.bits))));
}

}  // namespace

Explanation explain(const Expression& expression, const std::optional<ExactNumber>& exact,
                    const Format& format) {
  Expression::Value value = expression.evaluate(format);
  Explanation e{.format = &format,
                .bits = value.bits,
                .outcome = whole_outcome(format, value, exact),
                .rounded_from = std::move(value.rounded_from),
                .exact = exact};
  if (exact && is_finite(format, value.bits)) e.error_ulp = error_in_ulp(format, e.bits, *exact);
  e.steps = std::move(value.steps);
  return e;
}

std::string fields_text(const Format& format, Bits bits) {
  const Fields fields = fields_of(format, bits);
  return fmt::format("{} {:0{}b} {:0{}b}", fields.sign, fields.exponent,
                     static_cast<std::size_t>(format.exponent_bits), fields.fraction,
                     static_cast<std::size_t>(format.fraction_bits));
}

std::string fields_ruler(const Format& format) {
  return "s " + std::string(static_cast<std::size_t>(format.exponent_bits), 'e') + " " +
         std::string(static_cast<std::size_t>(format.fraction_bits), 'f');
}

std::string hexadecimal(const Format& format, Bits bits) {
  const int width = 1 + format.exponent_bits + format.fraction_bits;
  const int digits = width < 8 ? (width + 3) / 4 : 2 * format.bytes;
  return fmt::format("0x{:0{}X}", storage_bits(format, bits), static_cast<std::size_t>(digits));
}

std::string decimal(const Format& format, Bits bits) {
  return is_finite(format, bits) ? to_decimal(value_of(format, bits)) : shown(format, bits);
}

std::vector<std::string> derivation(const Expression& expression, const Explanation& e) {
  std::vector<std::string> lines;
  const Format& format = *e.format;
  if (!expression.is_number()) add_steps(lines, e);
  if (expression.is_stand_in()) {
    lines.push_back(fmt::format("the number is far {} every format's range",
                                is_finite(format, e.bits) ? "below" : "beyond"));
  }
  const bool has_binary = e.rounded_from && !e.rounded_from->is_zero() && !expression.is_stand_in();
  if (has_binary)
    add_binary(lines, source_text(expression, e), *e.rounded_from, format.fraction_bits);
  if (has_binary && is_finite(format, e.bits) && !is_below_normal(format, *e.rounded_from) &&
      !is_beyond(format, *e.rounded_from))
    add_rounding(lines, e);
  if (has_binary) add_limits(lines, e);
  add_exponent(lines, format, e.bits);
  add_value(lines, expression, e);
  return lines;
}

std::string ulp_text(double error) {
  constexpr double kLeast = 0.001;
  if (error == 0) return "0";
  return error < kLeast ? "under 0.001" : fmt::format("{:.3g}", error);
}

}  // namespace demi::number
