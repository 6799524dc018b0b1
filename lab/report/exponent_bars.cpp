#include "lab/report/exponent_bars.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "lab/report/format.h"
#include "lab/report/legend.h"
#include "lab/report/palette.h"
#include "lab/report/scale.h"
#include "lab/report/svg.h"

namespace demi::report {
namespace {

using Bars = ExponentBars::Bars;

// The places of exponents and percentages. The zeros' bar is left of the exponents, a gap away.
struct ExponentPlot {
  double left = 0, right = 0, top = 0, bottom = 0;
  int low = 0, high = 0;          // exponents shown
  double least = 1e-3;            // percent at the bottom, a power of ten; 100 is at the top
  static constexpr int kGap = 3;  // places for the zeros' bar

  double width_of_one() const { return (right - left) / (high - low + 1 + kGap); }
  double x(double exponent) const { return left + (exponent - low + kGap) * width_of_one(); }
  double y(double percent) const {
    const double share = std::log10(std::max(percent, least) / least) / std::log10(100 / least);
    return bottom - std::min(share, 1.0) * (bottom - top);
  }
};

bool is_shown(double percent) { return std::isfinite(percent) && percent > 0; }

// A frame that holds every bar and every mark.
ExponentPlot plot_of(const ExponentBars& bars, ChartSize size, double legend, double note) {
  ExponentPlot plot;
  double least = 100;
  int low = 0, high = 0;
  bool empty = true;
  const auto include = [&](int exponent) {
    low = empty ? exponent : std::min(low, exponent);
    high = empty ? exponent : std::max(high, exponent);
    empty = false;
  };
  for (const Bars& one : bars.bars) {
    for (const auto& [exponent, percent] : one.percent) {
      if (!is_shown(percent)) continue;
      include(exponent);
      least = std::min(least, percent);
    }
    if (is_shown(one.zero_percent)) least = std::min(least, one.zero_percent);
  }
  for (const Mark& mark : bars.marks) {
    include(static_cast<int>(std::floor(mark.x)) - 1);
    include(static_cast<int>(std::floor(mark.x)) + 1);
  }
  plot.low = low;
  plot.high = high;
  plot.least = std::pow(10, std::clamp(std::floor(std::log10(least)), -9.0, 0.0));
  plot.left = text_width("0.00001") + 14;
  plot.right = size.width - 14;
  plot.top = 56 + legend;
  plot.bottom = size.height - 42.0 - note;
  return plot;
}

void draw_line(Svg& svg, const char* what, const char* colour, const std::string& path) {
  svg.element("path", {{"class", what}, {"stroke", colour}, {"d", path}});
}

void draw_scales(Svg& svg, const ExponentPlot& plot) {
  for (double percent = plot.least; percent < 150; percent *= 10) {
    const double y = plot.y(percent);
    draw_line(svg, "grid", "#e3e6ea",
              fmt::format("M{} {}H{}", px(plot.left), px(std::round(y) + 0.5), px(plot.right)));
    svg.text(plot.left - 8, y + 4, format_number(percent),
             {{"class", "soft"}, {"text-anchor", "end"}});
  }
  draw_line(
      svg, "axis", "#6b7480",
      fmt::format("M{} {}H{}", px(plot.left), px(std::round(plot.bottom) + 0.5), px(plot.right)));
  const auto tick = [&](double x, const std::string& label) {
    svg.text(x, plot.bottom + 18, label, {{"class", "soft"}, {"text-anchor", "middle"}});
  };
  const double zeros = plot.x(plot.low - 2 + 0.5);
  tick(zeros, "zero");
  const int places = plot.high - plot.low + 1;
  const int fit = std::max(1, static_cast<int>((plot.right - plot.left) / text_width("-000 ")));
  int step = 2;
  while (places / step > fit) step *= 2;
  for (int e = plot.low; e <= plot.high; ++e)
    if (const std::string label = std::to_string(e);
        e % step == 0 && plot.x(e + 0.5) - zeros > (text_width("zero ") + text_width(label)) / 2)
      tick(plot.x(e + 0.5), label);
  svg.text((plot.left + plot.right) / 2, plot.bottom + 34, "log2 of the magnitude, and exact zeros",
           {{"class", "soft"}, {"text-anchor", "middle"}});
  svg.text(0, 35, "numbers (%)", {{"class", "soft"}});
}

void draw_filled(Svg& svg, const ExponentPlot& plot, const Bars& bars, std::size_t run) {
  const auto bar = [&](double exponent, double percent) {
    if (!is_shown(percent)) return;
    const double left = plot.x(exponent), top = std::min(plot.y(percent), plot.bottom - 1);
    svg.element("rect", {{"class", fmt::format("f{}", colour_of(run) + 1)},
                         {"fill", kLight.runs[colour_of(run)]},
                         {"x", px(left)},
                         {"y", px(top)},
                         {"width", px(std::max(0.8, plot.width_of_one() - 1))},
                         {"height", px(plot.bottom - top)}});
  };
  for (const auto& [exponent, percent] : bars.percent) bar(exponent, percent);
  bar(plot.low - 2, bars.zero_percent);
}

void draw_outline(Svg& svg, const ExponentPlot& plot, const Bars& bars, std::size_t run) {
  std::string path;
  const auto bar = [&](double exponent, double percent) {
    if (!is_shown(percent)) return;
    const double top = std::min(plot.y(percent), plot.bottom - 1);
    path +=
        fmt::format("M{} {}V{}H{}V{}", px(plot.x(exponent)), px(plot.bottom), px(top),
                    px(plot.x(exponent) + std::max(0.8, plot.width_of_one() - 1)), px(plot.bottom));
  };
  for (const auto& [exponent, percent] : bars.percent) bar(exponent, percent);
  bar(plot.low - 2, bars.zero_percent);
  svg.open_group({{"class", fmt::format("s{}", colour_of(run) + 1)},
                  {"fill", "none"},
                  {"stroke", kLight.runs[colour_of(run)]},
                  {"stroke-width", "1.5"}});
  svg.element("path", {{"d", path}});
  svg.close_group();
}

void draw_limits(Svg& svg, const ExponentPlot& plot, const std::vector<Mark>& marks) {
  for (const Mark& mark : marks) {
    const double x = plot.x(mark.x);
    draw_mark_line(svg, x, plot.top, plot.bottom);
    svg.text(std::min(x, plot.right - text_width(mark.label) / 2), plot.top - 5, mark.label,
             {{"class", "soft"}, {"text-anchor", "middle"}, {"font-size", "11"}});
  }
}

std::string description_of(const ExponentBars& bars) {
  std::string text = "Shares of numbers by power of two, on a logarithmic axis.";
  for (const Bars& one : bars.bars) {
    text += fmt::format(" {}: {} % exact zeros", one.name, format_number(one.zero_percent));
    const auto most =
        std::max_element(one.percent.begin(), one.percent.end(),
                         [](const auto& a, const auto& b) { return a.second < b.second; });
    if (most != one.percent.end())
      text += fmt::format(", from 2^{} to 2^{}, most ({} %) at 2^{}", one.percent.begin()->first,
                          one.percent.rbegin()->first, format_number(most->second), most->first);
    text += ".";
  }
  return text;
}

}  // namespace

std::string to_svg(const ExponentBars& bars, ChartSize size) {
  std::vector<std::string> names;
  for (const Bars& one : bars.bars) names.push_back(one.name);
  const std::vector<std::string> note = note_lines(bars.note, size.width);
  const double legend = legend_height(names, size.width, true);
  const ExponentPlot plot =
      plot_of(bars, size, legend, kNoteLine * static_cast<double>(note.size()));
  Svg svg(size.width, size.height, bars.title, description_of(bars));
  svg.text(0, 16, fitted(bars.title, size.width * 0.85),
           {{"class", "head"}, {"font-size", "14"}, {"font-weight", "600"}});
  draw_scales(svg, plot);
  draw_limits(svg, plot, bars.marks);
  for (std::size_t run = 0; run < bars.bars.size(); ++run)
    (run == 0 ? draw_filled : draw_outline)(svg, plot, bars.bars[run], run);
  draw_legend(svg, names, 44, size.width, true);
  draw_note(svg, note, size.height - 5);
  return std::move(svg).finish();
}

}  // namespace demi::report
