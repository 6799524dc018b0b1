#include "lab/number/range.h"

#include <fmt/format.h>

#include <charconv>
#include <cstdint>
#include <iterator>

#include "demi/core/error.h"
#include "demi/core/float_bits.h"

namespace demi::number {
namespace {

constexpr int kMostFixedBits = 64;

// The number at the front of the text, which is shortened by it. -1: there is none.
int read_count(std::string_view& text) {
  int count = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), count);
  if (error != std::errc()) return -1;
  text.remove_prefix(static_cast<std::size_t>(end - text.data()));
  return count;
}

}  // namespace

Range range_of(const Format& format) {
  const ExactNumber largest = value_of(format, largest_finite(format));
  return {.name = std::string(format.name),
          .bytes = format.bytes,
          .lowest = negated(largest),
          .largest = largest,
          .smallest_normal = value_of(format, smallest_normal(format)),
          .smallest_denormal = value_of(format, smallest_subnormal(format)),
          .epsilon = power_of_two(-format.fraction_bits),
          .step = std::nullopt};
}

Range range_of(const std::string& name, FixedPoint split) {
  const ExactNumber step = power_of_two(-split.fraction_bits);
  const ExactNumber beyond = power_of_two(split.integer_bits - 1);
  return {.name = name,
          .bytes = (split.integer_bits + split.fraction_bits + 7) / 8,
          .lowest = negated(beyond),
          .largest = sum(beyond, negated(step)),
          .smallest_normal = std::nullopt,
          .smallest_denormal = std::nullopt,
          .epsilon = std::nullopt,
          .step = step};
}

FixedPoint read_fixed_point(const std::string& text) {
  std::string_view rest = text;
  FixedPoint split{};
  split.integer_bits = read_count(rest);
  const bool has_point = rest.starts_with('.');
  if (has_point) rest.remove_prefix(1);
  split.fraction_bits = has_point ? read_count(rest) : -1;
  const bool is_split = rest.empty() && split.integer_bits >= 1 && split.fraction_bits >= 0 &&
                        split.integer_bits <= kMostFixedBits &&
                        split.fraction_bits <= kMostFixedBits &&
                        split.integer_bits + split.fraction_bits <= kMostFixedBits;
  if (!is_split) {
    throw UsageError({.where = "number.read_fixed_point",
                      .what = "no fixed-point split",
                      .seen = text,
                      .accepted = "bits before and behind the point, the sign among the first, "
                                  "64 at most in all: 8.8 or 1.15"});
  }
  return split;
}

std::vector<Range> ranges(const std::vector<const Format*>& formats, FixedPoint split) {
  constexpr int kIntegerBits[] = {8, 16, 32};
  std::vector<Range> all;
  all.reserve(formats.size() + std::size(kIntegerBits) + 1);
  for (const Format* format : formats) all.push_back(range_of(*format));
  for (const int bits : kIntegerBits)
    all.push_back(range_of(fmt::format("int{}", bits), {bits, 0}));
  all.push_back(
      range_of(fmt::format("fixed {}.{}", split.integer_bits, split.fraction_bits), split));
  return all;
}

}  // namespace demi::number
