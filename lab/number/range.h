#pragma once

#include <optional>
#include <string>
#include <vector>

#include "demi/core/dtype.h"
#include "demi/core/exact_number.h"
#include "demi/core/export.h"

namespace demi::number {

/// What fits a format. Each number is exact.
struct Range {
  std::string name;
  int bytes;  // of a value
  ExactNumber lowest, largest;
  // Of floating point formats.
  std::optional<ExactNumber> smallest_normal, smallest_denormal;
  std::optional<ExactNumber> epsilon;  // from 1 to the next number
  // Of integers and fixed-point numbers: from any number to the next one.
  std::optional<ExactNumber> step;
};

DEMI_API Range range_of(const Format& format);

/// A two's complement number: integer_bits, of which one is the sign, before the point, and
/// fraction_bits behind it. 1 to 64 bits in all.
struct FixedPoint {
  int integer_bits, fraction_bits;
};
DEMI_API Range range_of(const std::string& name, FixedPoint split);

/// Reads "8.8". Throws UsageError.
DEMI_API FixedPoint read_fixed_point(const std::string& text);

/// The formats, int8, int16, int32, and the fixed-point split.
DEMI_API std::vector<Range> ranges(const std::vector<const Format*>& formats, FixedPoint split);

}  // namespace demi::number
