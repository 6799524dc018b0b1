#pragma once

#include <optional>
#include <string>
#include <vector>

#include "demi/core/export.h"
#include "lab/report/scale.h"

namespace demi::report {

/// An axis of a chart.
struct Axis {
  std::string label;                // what its values are
  std::string unit;                 // "" for none
  Scale scale = Scale::kLinear;     // of its values
  std::optional<double> low, high;  // fixed ends; else from the values
};

/// A curve: `y[i]` at `x[i]`. NaN, infinities and, on a logarithmic axis, values of 0 and below are
/// gaps.
struct Series {
  std::string name;  // in the legend
  /// Points, in the order in which they are joined.
  std::vector<double> x, y;
};

/// A vertical line, such as an epoch's end.
struct Mark {
  double x;           // on the x axis
  std::string label;  // at the line
};

/// Curves laid over each other. Runs keep their colour and dashes by their place in `series`, so
/// give every chart of a page the same runs in the same order, an empty one where a run has no such
/// curve.
struct Chart {
  std::string title;  // above the chart
  /// The horizontal and the vertical axis.
  Axis x, y;
  std::vector<Series> series;
  std::vector<Mark> marks;  // vertical lines
  /// A value holds until the next one (a loss scale), instead of a line between them.
  bool steps = false;
  double smoothing = 0;  // 0 to 1: weight of the past in an exponential mean (TensorBoard's rule,
                         // debiased); the values themselves stay visible, faint
  std::string note;      // below the chart
};

/// Parts of a whole, one bar a run: time by phase.
struct StackedBars {
  std::string title;               // above the chart
  std::string unit;                // of the values
  std::vector<std::string> parts;  // in the order in which they are in the bar
  /// A bar.
  struct Bar {
    std::string name;            // before the bar
    std::vector<double> values;  // one a part; finite, 0 or more
  };
  std::vector<Bar> bars;  // from top to bottom
  std::string note;       // below the chart; "": none
};

/// Width and height of a drawing.
struct ChartSize {
  int width = 540, height = 300;  // in CSS pixels at scale 1; text is 12 px there
};

/// An <svg> element for HTML or, with `xmlns`, for a file of its own. It carries <title> and
/// <desc>, its colours as attributes (so it needs no style sheet) and as the classes of
/// html_page.h, which make it follow light and dark. Curves with more points than pixels are drawn
/// as first, lowest, highest and last value of each pixel, and the chart says so.
DEMI_API std::string to_svg(const Chart& chart, ChartSize size = {});
DEMI_API std::string to_svg(const StackedBars& bars, ChartSize size = {});

}  // namespace demi::report
