#include "lab/report/svg.h"

#include <fmt/format.h>

#include <cmath>

#include "lab/report/markup.h"
#include "lab/report/terminal.h"

namespace demi::report {

Svg::Svg(int width, int height, std::string_view title, std::string_view description) {
  tag("svg", {{"xmlns", "http://www.w3.org/2000/svg"},
              {"class", "chart"},
              {"role", "img"},
              {"viewBox", fmt::format("0 0 {} {}", width, height)},
              {"width", std::to_string(width)},
              {"height", std::to_string(height)},
              {"font-family", "system-ui, sans-serif"},
              {"font-size", "12"},
              {"fill", "#1d232b"}});
  body_ +=
      "<title>" + escape_html(title) + "</title>\n<desc>" + escape_html(description) + "</desc>\n";
}

void Svg::tag(std::string_view name, Attributes attributes) {
  body_ += fmt::format("<{}", name);
  for (const auto& [key, value] : attributes) {
    if (!value.empty()) body_ += fmt::format(" {}=\"{}\"", key, escape_html(value));
  }
  body_ += ">";
}

void Svg::element(std::string_view name, Attributes attributes) {
  tag(name, attributes);
  body_.back() = '/';
  body_ += ">\n";
}

void Svg::text(double x, double y, std::string_view content, Attributes attributes) {
  tag("text", attributes);
  body_.pop_back();
  body_ += fmt::format(" x=\"{}\" y=\"{}\">{}</text>\n", px(x), px(y), escape_html(content));
}

void Svg::open_group(Attributes attributes) {
  tag("g", attributes);
  body_ += "\n";
}

std::string Svg::finish() && { return std::move(body_) + "</svg>\n"; }

std::string px(double value) {
  const double tenths = std::round(value * 10);
  if (std::fmod(tenths, 10) == 0) return fmt::format("{:.0f}", tenths / 10 + 0.0);
  return fmt::format("{:.1f}", tenths / 10);
}

double text_width(std::string_view text) { return 6.7 * static_cast<double>(display_width(text)); }

std::vector<std::string> note_lines(std::string_view note, double width) {
  return wrap_words(note, static_cast<std::size_t>(width / 6.7));
}

void draw_note(Svg& svg, const std::vector<std::string>& lines, double bottom) {
  double y = bottom - kNoteLine * (static_cast<double>(lines.size()) - 1);
  for (const std::string& line : lines) {
    svg.text(0, y, line, {{"class", "soft"}});
    y += kNoteLine;
  }
}

std::string fitted(const std::string& text, double pixels) {
  if (text_width(text) <= pixels) return text;
  return cut_to_width(text, static_cast<std::size_t>(std::max(1.0, pixels / 6.7 - 1))) + "…";
}

}  // namespace demi::report
