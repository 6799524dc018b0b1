#include "lab/number/fixed_point.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <sstream>
#include <string_view>

#include "demi/core/error.h"
#include "lab/number/explanation.h"
#include "lab/number/float_bits.h"

namespace demi::number {
namespace {

constexpr int kMostFixedBits = 64;

// Removes the number from the front of the text, and returns it; -1 if there is none.
int read_count(std::string_view& text) {
  int count = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), count);
  if (error != std::errc()) return -1;
  text.remove_prefix(static_cast<std::size_t>(end - text.data()));
  return count;
}

bool is_less(const ExactNumber& x, const ExactNumber& y) {
  const ExactNumber difference = sum(x, negated(y));
  return difference.negative && !difference.is_zero();
}

// A letter for each bit, with blanks between sign, integer and fraction.
std::string spaced(FixedPoint split, std::string_view letters) {
  std::string text;
  for (int i = 0; i < split.bits(); ++i) {
    if (i == 1 || i == split.integer_bits) text += ' ';
    text += letters[static_cast<std::size_t>(i)];
  }
  return text;
}

FixedValue value_of(FixedPoint split, bool negative, std::uint64_t integer) {
  const std::uint64_t complement = negative ? ~integer + 1 : integer;
  const std::uint64_t mask =
      split.bits() == kMostFixedBits ? ~std::uint64_t{0} : (std::uint64_t{1} << split.bits()) - 1;
  return {.bits = complement & mask,
          .value = {.negative = negative && integer != 0,
                    .numerator = BigUnsigned(integer),
                    .exponent = -split.fraction_bits},
          .outcome = Outcome::kExact,
          .error_ulp = 0};
}

}  // namespace

FixedPoint read_fixed_point(const std::string& text) {
  std::string_view rest = text;
  FixedPoint split{};
  split.integer_bits = read_count(rest);
  const bool has_point = rest.starts_with('.');
  if (has_point) rest.remove_prefix(1);
  split.fraction_bits = has_point ? read_count(rest) : -1;
  const bool is_split = rest.empty() && split.integer_bits >= 1 && split.fraction_bits >= 0 &&
                        split.integer_bits <= kMostFixedBits &&
                        split.fraction_bits <= kMostFixedBits && split.bits() <= kMostFixedBits;
  if (!is_split) {
    refuse({.where = "number.read_fixed_point",
            .what = "no fixed-point split",
            .seen = text,
            .accepted = "bits before and behind the point, the sign among the first, "
                        "64 at most in all: 8.8 or 1.15"});
  }
  return split;
}

std::vector<FixedPoint> read_fixed_points(const std::string& text) {
  std::vector<FixedPoint> splits;
  std::istringstream list(text);
  for (std::string one; std::getline(list, one, ',');) splits.push_back(read_fixed_point(one));
  if (splits.empty() || text.ends_with(',')) read_fixed_point("");
  return splits;
}

std::string text_of(FixedPoint split) {
  return fmt::format("{}.{}", split.integer_bits, split.fraction_bits);
}

std::string name_of(FixedPoint split) { return "fixed " + text_of(split); }

ExactNumber lowest(FixedPoint split) { return negated(power_of_two(split.integer_bits - 1)); }

ExactNumber largest(FixedPoint split) {
  return sum(power_of_two(split.integer_bits - 1), negated(step(split)));
}

ExactNumber step(FixedPoint split) { return power_of_two(-split.fraction_bits); }

FixedValue round_to(FixedPoint split, const ExactNumber& x) {
  if (x.is_zero()) return value_of(split, false, 0);
  const std::uint64_t end = std::uint64_t{1} << (split.bits() - 1);  // of the integers
  const ExactNumber half = power_of_two(-split.fraction_bits - 1);
  const ExactNumber above = sum(largest(split), half), below = sum(lowest(split), negated(half));
  // Half a step beyond an end is a tie. Above the range it rounds to the even integer outside,
  // below it to the lowest one, which is even. With one bit, -1 or 0, it is the other way round.
  const bool has_one_bit = split.bits() == 1;
  const bool is_above = has_one_bit ? is_less(above, x) : !is_less(x, above);
  const bool is_below = has_one_bit ? !is_less(below, x) : is_less(x, below);
  FixedValue fixed{};
  if (is_above || is_below) {
    fixed = value_of(split, is_below, is_below ? end : end - 1);
    fixed.outcome = Outcome::kOverflow;
  } else {
    const RoundedInteger nearest = nearest_integer(leading_bits(x), -split.fraction_bits);
    fixed = value_of(split, x.negative, nearest.value);
    if (!nearest.is_exact)
      fixed.outcome = nearest.value == 0 ? Outcome::kUnderflow : Outcome::kRounded;
  }
  ExactNumber error = sum(fixed.value, negated(x));
  error.negative = false;
  error.exponent += split.fraction_bits;
  const Format& fp64 = format_of(Dtype::fp64);
  fixed.error_ulp = double_of(fp64, round_to(fp64, error));
  return fixed;
}

std::string fields_ruler(FixedPoint split) {
  std::string letters(static_cast<std::size_t>(split.bits()), 'f');
  std::fill_n(letters.begin(), split.integer_bits, 'i');
  letters.front() = 's';
  return spaced(split, letters);
}

std::string fields_text(FixedPoint split, std::uint64_t bits) {
  return spaced(split, fmt::format("{:0{}b}", bits, split.bits()));
}

std::string hexadecimal(FixedPoint split, std::uint64_t bits) {
  constexpr int kByte = 8, kDigitsOfByte = 2;
  return fmt::format("0x{:0{}X}", bits, (split.bits() + kByte - 1) / kByte * kDigitsOfByte);
}

std::vector<std::string> derivation(FixedPoint split, const ExactNumber& x,
                                    const FixedValue& fixed) {
  ExactNumber scaled = x, integer = fixed.value;
  scaled.exponent += split.fraction_bits;
  integer.exponent += split.fraction_bits;
  const std::string end =
      fixed.outcome == Outcome::kOverflow ? ", beyond the range, which ends at " + shown(integer)
      : fixed.outcome == Outcome::kExact  ? ""
                                          : ", to the nearest integer " + shown(integer);
  const std::string off =
      fixed.error_ulp == 0 ? ", exactly"
                           : fmt::format(", {} ULP from {}", ulp_text(fixed.error_ulp), shown(x));
  return {fmt::format("{} × 2^{} = {}{}", shown(x), split.fraction_bits, shown(scaled), end),
          "value " + shown(fixed.value) + off,
          fmt::format("from {} to {} in steps of 2^{} = {}", shown(lowest(split)),
                      shown(largest(split)), -split.fraction_bits, shown(step(split)))};
}

}  // namespace demi::number
