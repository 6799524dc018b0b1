#pragma once

#include <vector>

#include "demi/core/export.h"

namespace demi::report {

struct Point {
  double x, y;
};

/// Points in drawing order, y NaN where the curve is broken. For each column of one unit of x: the
/// first, the lowest, the highest and the last point, in their order; a gap stays a gap. At one
/// unit a pixel the drawing is the same.
DEMI_API std::vector<Point> decimate(const std::vector<Point>& points);

/// The exponential mean s_i = w s_(i-1) + (1 - w) y_i, divided by 1 - w^i so that it does not start
/// at 0 (Kingma and Ba 2015, section 3; TensorBoard smooths so). Non-finite values pass through and
/// do not touch the mean.
DEMI_API std::vector<double> smoothed(const std::vector<double>& values, double weight);

}  // namespace demi::report
