#include "lab/report/legend.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "lab/report/palette.h"

namespace demi::report {
namespace {

// Widths from the left of a sample to its name.
constexpr double kBoxSample = 15, kCurveSample = kLegendSample + 2;

struct Place {
  double x;
  int row;
};

/// Left to right, then the next row.
std::vector<Place> places(const std::vector<std::string>& names, double width, double sample) {
  std::vector<Place> out;
  Place at{0, 0};
  for (const std::string& name : names) {
    const double needs = name.empty() ? 0 : std::min(sample + text_width(name) + 14, width);
    if (at.x > 0 && at.x + needs > width) at = {0, at.row + 1};
    out.push_back(at);
    at.x += needs;
  }
  return out;
}

/// Moves the names at least one row apart and inside [top, bottom], as near to the curves' ends as
/// that allows.
void spread(std::vector<CurveEnd>& ends, double top, double bottom) {
  std::stable_sort(ends.begin(), ends.end(),
                   [](const CurveEnd& a, const CurveEnd& b) { return a.y < b.y; });
  double free_from = top;
  for (CurveEnd& end : ends) {
    end.y = std::max(end.y, free_from);
    free_from = end.y + kLegendRow;
  }
  double free_to = bottom;
  for (auto end = ends.rbegin(); end != ends.rend(); ++end) {
    end->y = std::min(end->y, free_to);
    free_to = end->y - kLegendRow;
  }
}

void draw_sample(Svg& svg, std::size_t run, const std::string& path) {
  svg.element("path", {{"class", fmt::format("s{}", colour_of(run) + 1)},
                       {"fill", "none"},
                       {"stroke", kLight.runs[colour_of(run)]},
                       {"stroke-width", "2"},
                       {"stroke-dasharray", dash_of(run)},
                       {"d", path}});
}

}  // namespace

void draw_labels(Svg& svg, std::vector<CurveEnd> ends, double left, double top, double bottom,
                 double right) {
  spread(ends, top + 4, bottom);
  for (const CurveEnd& end : ends) {
    draw_sample(svg, end.run, fmt::format("M{} {}h{}", px(left + 6), px(end.y), kLegendSample - 6));
    const double x = left + kLegendSample + 6;
    svg.text(x, end.y + 4, fitted(end.name, right - x),
             {{"class", fmt::format("t{}", colour_of(end.run) + 1)},
              {"fill", kLight.runs[colour_of(end.run)]}});
  }
}

void draw_legend(Svg& svg, const std::vector<std::string>& names, double y, double width,
                 bool boxes) {
  const double sample = boxes ? kBoxSample : kCurveSample;
  const std::vector<Place> at = places(names, width, sample);
  for (std::size_t run = 0; run < names.size(); ++run) {
    if (names[run].empty()) continue;
    const double middle = y + 8 + at[run].row * kLegendRow;
    if (boxes) {
      svg.element("rect", {{"class", fmt::format("f{}", colour_of(run) + 1)},
                           {"fill", kLight.runs[colour_of(run)]},
                           {"x", px(at[run].x)},
                           {"y", px(middle - 5)},
                           {"width", "10"},
                           {"height", "10"},
                           {"rx", "2"}});
    } else {
      draw_sample(svg, run, fmt::format("M{} {}h{}", px(at[run].x), px(middle), kLegendSample - 4));
    }
    const double x = at[run].x + (sample);
    svg.text(x, middle + 4, fitted(names[run], width - x));
  }
}

double legend_height(const std::vector<std::string>& names, double width, bool boxes) {
  if (names.empty()) return 0;
  return (places(names, width, boxes ? kBoxSample : kCurveSample).back().row + 1) * kLegendRow + 6;
}

void draw_mark_line(Svg& svg, double x, double top, double bottom) {
  svg.element("path",
              {{"class", "mark"},
               {"stroke", "#a9b0ba"},
               {"stroke-dasharray", "1 3"},
               {"d", fmt::format("M{} {}V{}", px(std::round(x) + 0.5), px(top), px(bottom))}});
}

void draw_marker(Svg& svg, std::size_t run, const Point& point) {
  static constexpr std::array<const char*, 4> kShapes = {
      "m-3.5 0a3.5 3.5 0 1 0 7 0a3.5 3.5 0 1 0 -7 0", "m-3 -3h6v6h-6z",
      "m0 -4.5l4.5 4.5l-4.5 4.5l-4.5 -4.5z", "m0 -4.5l4.2 7.5h-8.4z"};
  svg.element(
      "path",
      {{"class", fmt::format("m{}", colour_of(run) + 1)},
       {"fill", kLight.runs[colour_of(run)]},
       {"stroke", "none"},
       {"d", fmt::format("M{} {}{}", px(point.x), px(point.y), kShapes[run % kShapes.size()])}});
}

}  // namespace demi::report
