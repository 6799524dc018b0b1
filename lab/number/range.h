#pragma once

#include <optional>
#include <string>
#include <vector>

#include "demi/core/dtype.h"
#include "demi/core/export.h"
#include "lab/number/exact_number.h"
#include "lab/number/fixed_point.h"

namespace demi::number {

/// The range of a format. Each number is exact.
struct Range {
  std::string name;
  int bytes;  // of a value
  ExactNumber lowest, largest;
  // Floating point formats alone have these.
  std::optional<ExactNumber> smallest_normal, smallest_denormal;
  std::optional<ExactNumber> epsilon;  // from 1 to the next number
  // The distance from any integer or fixed-point number to the next one; none for other formats.
  std::optional<ExactNumber> step;
};

DEMI_API Range range_of(const Format& format);

DEMI_API Range range_of(const std::string& name, FixedPoint split);

/// The formats, int8, int16, int32, and the fixed-point splits.
DEMI_API std::vector<Range> ranges(const std::vector<const Format*>& formats,
                                   const std::vector<FixedPoint>& splits);

}  // namespace demi::number
