#pragma once

#include <initializer_list>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace demi::report {

/// An SVG drawing, element by element. Values of attributes are escaped.
class Svg {
 public:
  using Attributes = std::initializer_list<std::pair<std::string_view, std::string>>;

  /// `title` and `description` are for screen readers.
  Svg(int width, int height, std::string_view title, std::string_view description);

  void element(std::string_view name, Attributes attributes);
  void text(double x, double y, std::string_view content, Attributes attributes = {});
  void open_group(Attributes attributes);
  void close_group() { body_ += "</g>\n"; }

  std::string finish() &&;

 private:
  void tag(std::string_view name, Attributes attributes);
  std::string body_;
};

/// A coordinate: one decimal is a tenth of a pixel.
std::string px(double value);

/// Columns of 12 px text in pixels, nearly: a page's typeface is the reader's.
double text_width(std::string_view text);

/// Small print below a drawing, in lines that fit its width. The last line is at `bottom`.
inline constexpr int kNoteLine = 16;
std::vector<std::string> note_lines(std::string_view note, double width);
void draw_note(Svg& svg, const std::vector<std::string>& lines, double bottom);

/// The text, cut with "…" to what `pixels` hold.
std::string fitted(const std::string& text, double pixels);

}  // namespace demi::report
