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

struct Paragraph {
  std::string text;
};

/// Name and value, line by line: the machine, the configuration.
struct Facts {
  std::string title;
  std::vector<std::pair<std::string, std::string>> rows;
};

/// The few figures that a reader came for, in large type: {"1.72 ×", "speedup", "bf16 against
/// fp32"}.
struct Highlights {
  struct Figure {
    std::string value, name, detail;
  };
  std::vector<Figure> figures;
};

/// Text as it is, in a typeface of fixed width: a command, an error.
struct Code {
  std::string text;
};

using Block =
    std::variant<Paragraph, Highlights, Table, Chart, StackedBars, ExponentBars, Facts, Code>;

struct Section {
  std::string title;
  /// Charts that follow each other are side by side where there is room.
  std::vector<Block> blocks;
};

struct Page {
  std::string title;
  std::string subtitle;
  std::vector<Section> sections;
  std::string footer;
};

/// One HTML file that needs nothing else: no script, no request, no style attribute. Light and dark
/// follow the reader's system, paper is always light. On a narrow screen charts are drawn for it
/// (each is in the file in two sizes) and tables scroll by themselves. Where a viewer forbids style
/// sheets, it is still a plain page in the right order with coloured charts. All text is escaped.
DEMI_API std::string to_html(const Page& page);

}  // namespace demi::report
