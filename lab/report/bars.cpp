#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "lab/report/chart.h"
#include "lab/report/format.h"
#include "lab/report/legend.h"
#include "lab/report/palette.h"
#include "lab/report/svg.h"

namespace demi::report {
namespace {

constexpr double kBar = 24;   // height
constexpr double kStep = 54;  // from one bar to the next; the name is above its bar

double usable(const StackedBars::Bar& bar, std::size_t part) {
  const double value = part < bar.values.size() ? bar.values[part] : 0;
  return std::isfinite(value) && value > 0 ? value : 0;
}

double total(const StackedBars& bars, const StackedBars::Bar& bar) {
  double sum = 0;
  for (std::size_t part = 0; part < bars.parts.size(); ++part) sum += usable(bar, part);
  return sum;
}

// Three digits, and two of a small value: 123, 12.3, 1.23, 0.12, 0.012, 0.0012.
std::string amount(double value, const std::string& unit) {
  const int decimals = value >= 100 ? 0 : value >= 10 ? 1 : value >= 0.0995 || value == 0 ? 2 : 3;
  const bool is_small = value > 0 && value < 0.01;
  return (is_small ? format_number(value, 2) : format_fixed(value, decimals)) +
         (unit.empty() ? "" : " " + unit);
}

std::string description(const StackedBars& bars) {
  std::string text;
  for (const StackedBars::Bar& bar : bars.bars) {
    text += fmt::format("{}: {} in all", bar.name, amount(total(bars, bar), bars.unit));
    for (std::size_t part = 0; part < bars.parts.size(); ++part) {
      text += fmt::format(", {} {}", bars.parts[part], amount(usable(bar, part), bars.unit));
    }
    text += ". ";
  }
  return text;
}

/// The name and value of a part inside it, or the value alone, or nothing: what the part has room
/// for.
std::string inside(const std::string& part, const std::string& value, double pixels) {
  if (text_width(part + " " + value) + 12 <= pixels) return part + " " + value;
  return text_width(value) + 8 <= pixels ? value : "";
}

void draw_bar(Svg& svg, const StackedBars& bars, const StackedBars::Bar& bar, double top,
              double pixels_per_unit) {
  double x = 0;
  for (std::size_t part = 0; part < bars.parts.size(); ++part) {
    const double value = usable(bar, part);
    const double width = value * pixels_per_unit;
    if (width <= 0) continue;
    svg.element("rect", {{"class", fmt::format("f{}", colour_of(part) + 1)},
                         {"fill", kLight.runs[colour_of(part)]},
                         {"x", px(x)},
                         {"y", px(top)},
                         {"width", px(std::max(0.5, width - 1.5))},
                         {"height", px(kBar)}});
    const std::string label = inside(bars.parts[part], amount(value, ""), width);
    const bool is_whole = bars.parts.size() == 1;  // whose amount is above the bar
    if (!label.empty() && !is_whole)
      svg.text(x + 6, top + 16, label, {{"class", "on"}, {"fill", "#ffffff"}});
    x += width;
  }
}

}  // namespace

std::string to_svg(const StackedBars& bars, ChartSize size) {
  double longest = 0;
  for (const StackedBars::Bar& bar : bars.bars) longest = std::max(longest, total(bars, bar));
  const std::vector<std::string> note = note_lines(bars.note, size.width);
  const double first = 30 + legend_height(bars.parts, size.width, true);
  const int height = static_cast<int>(first + kStep * static_cast<double>(bars.bars.size()) +
                                      kNoteLine * static_cast<double>(note.size()));
  Svg svg(size.width, height, bars.title, description(bars));
  svg.text(0, 16, fitted(bars.title, size.width * 0.85),
           {{"class", "head"}, {"font-size", "14"}, {"font-weight", "600"}});
  draw_legend(svg, bars.parts, 26, size.width, true);
  for (std::size_t i = 0; i < bars.bars.size(); ++i) {
    const StackedBars::Bar& bar = bars.bars[i];
    const double top = first + kStep * static_cast<double>(i) + 18;
    const double pixels = longest > 0 ? size.width / longest : 0;
    svg.text(0, top - 6, fitted(bar.name, size.width - 90.0));
    svg.text(size.width, top - 6, amount(total(bars, bar), bars.unit),
             {{"class", "soft"}, {"text-anchor", "end"}});
    draw_bar(svg, bars, bar, top, pixels);
  }
  draw_note(svg, note, height - 4);
  return std::move(svg).finish();
}

}  // namespace demi::report
