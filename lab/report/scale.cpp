#include "lab/report/scale.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "lab/report/format.h"

namespace demi::report {
namespace {

/// The least and the greatest magnitude on an axis, whose width and steps are then normal numbers.
constexpr double kLeast = 1e-300, kGreatest = 1e300;

/// The least width of a linear axis, as a share of its values: ticks at a sixth of it are some
/// 700 doubles apart.
constexpr double kLeastWidth = 1e-12;

/// The least quotient of the ends of a logarithmic axis, which are marks within 1e-9.
constexpr double kLeastRatio = 1 + 1e-8;

/// The smallest of 1, 2, 5 × 10^k that is at least `raw`.
double nice_step(double raw) {
  const double power = std::pow(10.0, std::floor(std::log10(raw)));
  for (const double factor : {1.0, 2.0, 5.0}) {
    if (factor * power >= raw * (1 - 1e-12)) return factor * power;
  }
  return 10 * power;
}

/// The decimals that the step needs; all labels of an axis have the same number of them.
std::string label_of(double value, double step, double largest) {
  if (largest >= 1e7 || (largest < 1e-4 && largest > 0)) return format_number(value, 4);
  const int decimals = std::max(0, static_cast<int>(std::ceil(-std::log10(step) - 1e-9)));
  return format_fixed(value, decimals);
}

AxisScale linear(Range range, int most, bool loose, bool whole) {
  if (range.empty) range = {0, 1, false};
  const double magnitude = std::max(std::abs(range.low), std::abs(range.high));
  if (range.high - range.low <= std::max(kLeastWidth * magnitude, kLeast)) {
    const double room = magnitude <= kLeast ? 1 : magnitude * 0.1;
    range = {range.low - room, range.high + room, false};
  }
  double step = nice_step((range.high - range.low) / most);
  if (whole) step = std::max(step, 1.0);
  const double first =
      loose ? std::floor(range.low / step + 1e-9) : std::ceil(range.low / step - 1e-9);
  const double last =
      loose ? std::ceil(range.high / step - 1e-9) : std::floor(range.high / step + 1e-9);
  AxisScale axis{Scale::kLinear, range.low, range.high, {}};
  if (loose) {
    axis.low = first * step;
    axis.high = last * step;
  }
  const double largest = std::max(std::abs(axis.low), std::abs(axis.high));
  for (double i = first; i <= last; ++i)
    axis.ticks.push_back({i * step, label_of(i * step, step, largest)});
  return axis;
}

// Powers of two are written out where all of the axis are short whole numbers.
std::string power_label(double value, const AxisScale& axis) {
  if (axis.scale != Scale::kLog2) return format_number(value, 4);
  const bool all_short = axis.low >= 1 && axis.high < 1e6;
  return all_short ? fmt::format("{:.0f}", value) : fmt::format("2^{:.0f}", std::log2(value));
}

/// The marks of a logarithmic axis: powers of the base, and 2 and 5 times them if there are few
/// powers.
std::vector<double> marks_around(double low, double high, double base, bool between) {
  std::vector<double> marks;
  for (double power = low; power <= high; ++power) {
    for (const double factor : {1.0, 2.0, 5.0}) {
      if (factor == 1 || between) marks.push_back(factor * std::pow(base, power));
    }
  }
  return marks;
}

AxisScale logarithmic(Range range, Scale scale, int most, bool loose) {
  if (range.empty) range = {1, 10, false};
  const double base = scale == Scale::kLog2 ? 2 : 10;
  if (range.high <= kLeastRatio * range.low) range = {range.low / base, range.high * base, false};
  const auto log = [&](double value) {
    return scale == Scale::kLog2 ? std::log2(value) : std::log10(value);
  };
  const double low = std::floor(log(range.low) + 1e-9);
  const double high = std::ceil(log(range.high) - 1e-9);
  std::vector<double> marks =
      marks_around(low, high, base, scale == Scale::kLog10 && high - low <= 3);
  AxisScale axis{scale, range.low, range.high, {}};
  if (loose) {
    for (const double mark : marks) {
      if (mark <= range.low * (1 + 1e-9)) axis.low = mark;
    }
    const auto end = std::find_if(marks.begin(), marks.end(),
                                  [&](double mark) { return mark >= range.high * (1 - 1e-9); });
    axis.high = end == marks.end() ? range.high : *end;
  }
  std::erase_if(marks, [&](double mark) {
    return mark < axis.low * (1 - 1e-9) || mark > axis.high * (1 + 1e-9);
  });
  const std::size_t stride =
      std::max<std::size_t>(1, (marks.size() + static_cast<std::size_t>(most) - 1) /
                                   (static_cast<std::size_t>(most) + 1));
  const bool powers_only = scale == Scale::kLog2 || high - low > 3;
  for (std::size_t i = 0; i < marks.size(); i += powers_only ? stride : 1) {
    axis.ticks.push_back({marks[i], power_label(marks[i], axis)});
  }
  return axis;
}

}  // namespace

bool drawable(double value, Scale scale) {
  return std::abs(value) <= kGreatest && (scale == Scale::kLinear || value >= kLeast);
}

void Range::include(double value, Scale scale) {
  if (!drawable(value, scale)) return;
  low = empty ? value : std::min(low, value);
  high = empty ? value : std::max(high, value);
  empty = false;
}

double AxisScale::place(double value) const {
  if (scale == Scale::kLinear) return (value - low) / (high - low);
  return (std::log(value) - std::log(low)) / (std::log(high) - std::log(low));
}

AxisScale axis_scale(const Range& range, Scale scale, int most, bool loose, bool whole) {
  return scale == Scale::kLinear ? linear(range, most, loose, whole)
                                 : logarithmic(range, scale, most, loose);
}

}  // namespace demi::report
