#pragma once

#include <map>
#include <string>
#include <vector>

#include "demi/core/export.h"
#include "lab/report/chart.h"

namespace demi::report {

/// Shares of numbers by their power of two, on a logarithmic axis, with a bar for exact zeros: the
/// figure of Micikevicius et al. 2018, "Mixed precision training", figure 3.
struct ExponentBars {
  /// A run's numbers.
  struct Bars {
    std::string name;               // in the legend
    std::map<int, double> percent;  // of exponent e: numbers in [2^e, 2^(e+1)); those above 0
    double zero_percent = 0;        // exact zeros
  };
  std::string title;        // above the chart
  std::vector<Bars> bars;   // the first is filled, others are outlines over it
  std::vector<Mark> marks;  // x: an exponent; a line at its left edge, or within for a fraction
  std::string note;         // below the chart; "": none
};

/// Draws the bars, as the other charts (chart.h).
DEMI_API std::string to_svg(const ExponentBars& bars, ChartSize size = {});

}  // namespace demi::report
