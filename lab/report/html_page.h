#pragma once

#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "demi/core/export.h"
#include "lab/report/chart.h"
#include "lab/report/exponent_bars.h"
#include "lab/report/table.h"

namespace demi::report {

/// Running text.
struct Paragraph {
  std::string text;  // without markup
};

/// Name and value, line by line: the machine, the configuration.
struct Facts {
  std::string title;  // above the lines; "": none
  /// Name and value.
  std::vector<std::pair<std::string, std::string>> rows;
};

/// The few figures that a reader came for, in large type: {"1.72 ×", "speedup", "bf16 against
/// fp32"}.
struct Highlights {
  /// A figure.
  struct Figure {
    /// The number, what it is, and what it is set against.
    std::string value, name, detail;
  };
  std::vector<Figure> figures;  // from left to right
};

/// Unchanged text in a typeface of fixed width: a command, an error.
struct Code {
  std::string text;  // without markup
};

/// A block of a section.
using Block =
    std::variant<Paragraph, Highlights, Table, Chart, StackedBars, ExponentBars, Facts, Code>;

/// A part of a page under a heading.
struct Section {
  std::string title;  // its heading
  /// Charts that follow each other are side by side where there is room.
  std::vector<Block> blocks;
};

/// A page in one file.
struct Page {
  std::string title;              // its heading, and the window's title
  std::string subtitle;           // below the heading; "": none
  std::vector<Section> sections;  // in their order
  std::string footer;             // the last line; "": none
};

/// The page as one HTML file that needs nothing else: no script, no request, no style attribute.
/// Light and dark follow the reader's system, paper is always light. On a narrow screen charts are
/// drawn for it (each is in the file in two sizes) and tables scroll by themselves. If a viewer
/// forbids style sheets, it is still a plain page in the right order with coloured charts. All text
/// is escaped.
DEMI_API std::string to_html(const Page& page);

}  // namespace demi::report
