#include "lab/report/chart.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "lab/report/decimate.h"
#include "lab/report/format.h"
#include "lab/report/legend.h"
#include "lab/report/palette.h"
#include "lab/report/svg.h"

namespace demi::report {
namespace {

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr std::size_t kMarkersUpTo = 24;  // points; more would make a curve a string of beads

struct Box {
  double left, top, right, bottom;
  double width() const { return right - left; }
  double height() const { return bottom - top; }
};

/// Everything that is known before the first line is drawn.
struct Frame {
  Box plot;
  AxisScale x, y;
  bool labels_at_curves;

  double px_x(double value) const { return plot.left + x.place(value) * plot.width(); }
  double px_y(double value) const { return plot.bottom - y.place(value) * plot.height(); }
};

std::string with_unit(const Axis& axis) {
  return axis.unit.empty() ? axis.label : axis.label + " (" + axis.unit + ")";
}

std::size_t length(const Series& series) { return std::min(series.x.size(), series.y.size()); }

bool is_whole(const Chart& chart) {
  return std::all_of(chart.series.begin(), chart.series.end(), [](const Series& s) {
    return std::all_of(s.x.begin(), s.x.end(), [](double x) { return x == std::trunc(x); });
  });
}

Range range_of(const Chart& chart, const Axis& axis, bool horizontal) {
  Range range;
  for (const Series& series : chart.series) {
    for (std::size_t i = 0; i < length(series); ++i) {
      if (drawable(series.x[i], chart.x.scale) && drawable(series.y[i], chart.y.scale)) {
        range.include(horizontal ? series.x[i] : series.y[i], axis.scale);
      }
    }
  }
  if (axis.low) range.low = *axis.low, range.empty = false;
  if (axis.high) range.high = *axis.high, range.empty = false;
  return range;
}

AxisScale fixed_ends(AxisScale axis, const Axis& wanted) {
  if (wanted.low) axis.low = *wanted.low;
  if (wanted.high) axis.high = *wanted.high;
  std::erase_if(axis.ticks,
                [&](const Tick& t) { return t.value < axis.low || t.value > axis.high; });
  return axis;
}

bool has_values(const Series& series, const Chart& chart) {
  for (std::size_t i = 0; i < length(series); ++i) {
    if (drawable(series.x[i], chart.x.scale) && drawable(series.y[i], chart.y.scale)) return true;
  }
  return false;
}

/// Values of the series at one place; "" for a series without one.
std::vector<std::string> names_of(const Chart& chart) {
  std::vector<std::string> names;
  for (const Series& series : chart.series)
    names.push_back(has_values(series, chart) ? series.name : "");
  return names;
}

Frame frame_of(const Chart& chart, ChartSize size) {
  Frame frame{};
  frame.y = fixed_ends(
      axis_scale(range_of(chart, chart.y, false), chart.y.scale, size.height / 50, true), chart.y);
  frame.x = fixed_ends(axis_scale(range_of(chart, chart.x, true), chart.x.scale,
                                  std::max(2, (size.width - 90) / 65), false, is_whole(chart)),
                       chart.x);
  double ticks = 0, names = 0;
  for (const Tick& tick : frame.y.ticks) ticks = std::max(ticks, text_width(tick.label));
  for (const Series& series : chart.series) names = std::max(names, text_width(series.name));
  const int rows = (size.height - 110) / kLegendRow;
  frame.labels_at_curves = size.width >= 480 && static_cast<int>(chart.series.size()) <= rows;
  const double beside = std::min(names + kLegendSample + 12, size.width * 0.3);
  const double below_title = 48 + (chart.marks.empty() ? 0 : 8);
  const double legend = frame.labels_at_curves ? 0 : legend_height(names_of(chart), size.width);
  frame.plot = {ticks + 14, below_title + legend,
                size.width - (frame.labels_at_curves ? beside : 14.0),
                size.height - 42.0 -
                    kNoteLine * static_cast<double>(note_lines(chart.note, size.width).size())};
  return frame;
}

void draw_axes(Svg& svg, const Chart& chart, const Frame& frame, ChartSize size) {
  const Box& plot = frame.plot;
  for (const Tick& tick : frame.y.ticks) {
    const std::string y = px(std::round(frame.px_y(tick.value)) + 0.5);
    svg.element("path", {{"class", "grid"},
                         {"stroke", "#e3e6ea"},
                         {"d", fmt::format("M{} {}H{}", px(plot.left), y, px(plot.right))}});
    svg.text(plot.left - 8, frame.px_y(tick.value) + 4, tick.label,
             {{"class", "soft"}, {"text-anchor", "end"}});
  }
  svg.element("path", {{"class", "axis"},
                       {"stroke", "#6b7480"},
                       {"d", fmt::format("M{} {}H{}", px(plot.left),
                                         px(std::round(plot.bottom) + 0.5), px(plot.right))}});
  for (const Tick& tick : frame.x.ticks) {
    const double x = frame.px_x(tick.value);
    svg.element("path", {{"class", "axis"},
                         {"stroke", "#6b7480"},
                         {"d", fmt::format("M{} {}v4", px(std::round(x) + 0.5), px(plot.bottom))}});
    svg.text(x, plot.bottom + 18, tick.label, {{"class", "soft"}, {"text-anchor", "middle"}});
  }
  svg.text((plot.left + plot.right) / 2, plot.bottom + 34, with_unit(chart.x),
           {{"class", "soft"}, {"text-anchor", "middle"}});
  svg.text(0, 35, with_unit(chart.y), {{"class", "soft"}});
  draw_note(svg, note_lines(chart.note, size.width), size.height - 5);
}

void draw_marks(Svg& svg, const Chart& chart, const Frame& frame) {
  const Box& plot = frame.plot;
  double free_from = plot.left;  // labels that would overlap are left out, their lines stay
  for (const Mark& mark : chart.marks) {
    if (!(mark.x >= frame.x.low && mark.x <= frame.x.high)) continue;
    const double x = frame.px_x(mark.x);
    draw_mark_line(svg, x, plot.top, plot.bottom);
    const double half = text_width(mark.label) / 2;
    if (x - half < free_from || x + half > plot.right + 8) continue;
    svg.text(x, plot.top - 5, mark.label,
             {{"class", "soft"}, {"text-anchor", "middle"}, {"font-size", "11"}});
    free_from = x + half + 6;
  }
}

/// The curve on the canvas, y NaN where it is broken.
std::vector<Point> placed(const Series& series, const std::vector<double>& values,
                          const Chart& chart, const Frame& frame) {
  std::vector<Point> points;
  for (std::size_t i = 0; i < length(series); ++i) {
    const bool seen = drawable(series.x[i], chart.x.scale) && drawable(values[i], chart.y.scale);
    if (!seen) {
      points.push_back({kNan, kNan});
      continue;
    }
    const Point point{frame.px_x(series.x[i]), std::clamp(frame.px_y(values[i]), -1e5, 1e5)};
    if (chart.steps && !points.empty() && !std::isnan(points.back().y))
      points.push_back({point.x, points.back().y});
    points.push_back(point);
  }
  return points;
}

std::string path_of(const std::vector<Point>& points) {
  std::string path;
  bool pen_down = false;
  for (const Point& point : points) {
    if (std::isnan(point.y)) {
      pen_down = false;
      continue;
    }
    path += fmt::format("{}{} {}", pen_down ? "L" : "M", px(point.x), px(point.y));
    pen_down = true;
  }
  return path;
}

/// Points that no line shows: all of them where they are few, else those with a gap on either side.
std::vector<Point> marked(const std::vector<Point>& points) {
  const bool all = points.size() <= kMarkersUpTo;
  std::vector<Point> out;
  const auto gap = [&](std::size_t i) { return i >= points.size() || std::isnan(points[i].y); };
  for (std::size_t i = 0; i < points.size(); ++i) {
    if (!gap(i) && (all || (gap(i - 1) && gap(i + 1)))) out.push_back(points[i]);
  }
  return out;
}

void draw_curve(Svg& svg, std::size_t run, const std::vector<Point>& points, bool faint,
                bool markers) {
  const std::string colour = kLight.runs[colour_of(run)];
  svg.open_group({{"class", fmt::format("s{}{}", colour_of(run) + 1, faint ? " faint" : "")},
                  {"fill", "none"},
                  {"stroke", colour},
                  {"stroke-opacity", faint ? "0.28" : ""},
                  {"stroke-width", faint ? "1" : "2"},
                  {"stroke-linejoin", "round"}});
  svg.element("path",
              {{"stroke-dasharray", faint ? "" : dash_of(run)}, {"d", path_of(decimate(points))}});
  if (markers) {
    for (const Point& point : marked(points)) draw_marker(svg, run, point);
  }
  svg.close_group();
}

/// The end of each curve, for its label.
double end_of(const std::vector<Point>& points, const Frame& frame) {
  for (auto point = points.rbegin(); point != points.rend(); ++point) {
    if (std::isnan(point->y)) continue;
    return std::clamp(point->y, frame.plot.top, frame.plot.bottom);
  }
  return frame.plot.bottom;
}

std::string described(const Chart& chart, const Series& series) {
  Range range;
  std::size_t gaps = 0;
  for (std::size_t i = 0; i < length(series); ++i) {
    if (drawable(series.y[i], chart.y.scale))
      range.include(series.y[i], chart.y.scale);
    else
      ++gaps;
  }
  std::string text = fmt::format(" {}: {} values", series.name, length(series));
  if (!range.empty) {
    text += fmt::format(", the last one {}, lowest {}, highest {}",
                        format_number(series.y[length(series) - 1]), format_number(range.low),
                        format_number(range.high));
  }
  if (gaps > 0) text += fmt::format(", {} not finite or not to be shown on this scale", gaps);
  return text + ".";
}

std::string description(const Chart& chart) {
  std::string text =
      fmt::format("Horizontal: {}. Vertical: {}.", with_unit(chart.x), with_unit(chart.y));
  for (const Series& series : chart.series) text += described(chart, series);
  return text;
}

/// A note on how the curves were drawn.
std::string note_of(const Chart& chart, const Frame& frame) {
  std::string note = chart.note;
  const auto add = [&](const std::string& text) { note += (note.empty() ? "" : "; ") + text; };
  std::size_t most = 0;
  for (const Series& series : chart.series) most = std::max(most, length(series));
  if (chart.smoothing > 0)
    add(fmt::format("strong: exponential mean, {}; faint: every value",
                    format_number(chart.smoothing)));
  if (static_cast<double>(most) > 4 * frame.plot.width()) {
    add(fmt::format("{} points, drawn as lowest and highest of each pixel",
                    format_count(static_cast<std::int64_t>(most))));
  }
  return note;
}

}  // namespace

std::string to_svg(const Chart& original, ChartSize size) {
  Chart chart = original;
  chart.note = note_of(original, frame_of(original, size));
  const Frame frame = frame_of(chart, size);
  Svg svg(size.width, size.height, chart.title, description(chart));
  svg.text(0, 16, fitted(chart.title, size.width * 0.85),
           {{"class", "head"}, {"font-size", "14"}, {"font-weight", "600"}});
  draw_axes(svg, chart, frame, size);
  draw_marks(svg, chart, frame);
  std::vector<CurveEnd> ends;
  for (std::size_t run = 0; run < chart.series.size(); ++run) {
    const Series& series = chart.series[run];
    const std::vector<Point> raw = placed(series, series.y, chart, frame);
    std::vector<Point> points = raw;
    if (chart.smoothing > 0) {
      draw_curve(svg, run, raw, true, false);
      points = placed(series, smoothed(series.y, chart.smoothing), chart, frame);
    }
    draw_curve(svg, run, points, false, true);
    if (!has_values(series, chart)) continue;
    ends.push_back({run, series.name, end_of(points, frame)});
  }
  if (frame.labels_at_curves) {
    draw_labels(svg, std::move(ends), frame.plot.right, frame.plot.top, frame.plot.bottom,
                size.width);
  } else {
    draw_legend(svg, names_of(chart), 44, size.width);
  }
  return std::move(svg).finish();
}

}  // namespace demi::report
