#include "lab/number/range.h"

#include <fmt/format.h>

#include <iterator>

#include "lab/number/float_bits.h"

namespace demi::number {

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
  return {.name = name,
          .bytes = (split.bits() + 7) / 8,
          .lowest = lowest(split),
          .largest = largest(split),
          .smallest_normal = std::nullopt,
          .smallest_denormal = std::nullopt,
          .epsilon = std::nullopt,
          .step = step(split)};
}

std::vector<Range> ranges(const std::vector<const Format*>& formats,
                          const std::vector<FixedPoint>& splits) {
  constexpr int kIntegerBits[] = {8, 16, 32};
  std::vector<Range> all;
  all.reserve(formats.size() + std::size(kIntegerBits) + splits.size());
  for (const Format* format : formats) all.push_back(range_of(*format));
  for (const int bits : kIntegerBits)
    all.push_back(range_of(fmt::format("int{}", bits), {bits, 0}));
  for (const FixedPoint split : splits) all.push_back(range_of(name_of(split), split));
  return all;
}

}  // namespace demi::number
