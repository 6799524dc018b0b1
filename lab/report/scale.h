#pragma once

#include <string>
#include <vector>

#include "demi/core/export.h"

namespace demi::report {

/// The scale of an axis: in proportion to the values, or to their logarithm.
enum class Scale { kLinear, kLog2, kLog10 };

/// Values that an axis can show: magnitudes up to 1e300, and values from 1e-300 on a logarithmic
/// one. All others are gaps.
DEMI_API bool drawable(double value, Scale scale);

/// The smallest and largest drawable value seen; empty at first.
struct Range {
  /// Both 0 while `empty`.
  double low = 0, high = 0;
  bool empty = true;  // no value was drawable so far
  /// Widens it to this value, if that is drawable.
  DEMI_API void include(double value, Scale scale);
};

/// A mark on an axis.
struct Tick {
  double value;       // its place
  std::string label;  // the value as text
};

/// An axis that is ready to draw on: where it begins and ends, its ticks, all of them inside.
struct AxisScale {
  Scale scale = Scale::kLinear;  // of its values
  /// The values at its two ends.
  double low = 0, high = 1;
  std::vector<Tick> ticks;  // what is marked on it

  /// 0 at `low`, 1 at `high`.
  DEMI_API double place(double value) const;
};

/// Linear: ticks at multiples of 1, 2 or 5 times a power of ten (Heckbert, Nice Numbers for Graph
/// Labels, Graphics Gems 1990), at most `most` + 1 of them; `whole` keeps the step at 1 or more.
/// Logarithmic: ticks at powers of the base, at 1-2-5 where that leaves fewer than three. `loose`
/// widens the axis to the next tick on either side. A range whose ends differ in the last of their
/// digits alone (1e-12, logarithmic 1e-8 of them) gets the axis of one value, which is wider.
DEMI_API AxisScale axis_scale(const Range& range, Scale scale, int most, bool loose,
                              bool whole = false);

}  // namespace demi::report
