#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "lab/report/decimate.h"
#include "lab/report/svg.h"

namespace demi::report {

inline constexpr int kLegendRow = 16;     // pixels from one name to the next
inline constexpr int kLegendSample = 24;  // length of the piece of curve before a name

/// The end of a curve at the edge of the plot.
struct CurveEnd {
  std::size_t run = 0;
  std::string name;
  double y = 0;
};

/// Names next to the ends of their curves, each led to by a piece of the curve, moved apart where
/// they would overlap.
void draw_labels(Svg& svg, std::vector<CurveEnd> ends, double left, double top, double bottom,
                 double right);

/// Rows of names (an empty one is left out) with a piece of their curve (or a box of their colour)
/// for where there is no room next to the curves.
void draw_legend(Svg& svg, const std::vector<std::string>& names, double y, double width,
                 bool boxes = false);
double legend_height(const std::vector<std::string>& names, double width, bool boxes = false);

/// The dotted line of a mark of the horizontal axis.
void draw_mark_line(Svg& svg, double x, double top, double bottom);

/// Circle, square, diamond, triangle, by the run's place.
void draw_marker(Svg& svg, std::size_t run, const Point& point);

}  // namespace demi::report
