#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "demi/core/export.h"
#include "lab/report/terminal.h"

namespace demi::report {

/// The alignment of a column's cells.
enum class Align { kLeft, kRight };

/// The head of a column.
struct Column {
  std::string name;             // its heading
  std::string unit = {};        // said once, in the header; "" for none
  Align align = Align::kRight;  // numbers right, names left
};

/// Figures in rows and columns, described once and shown on a terminal, in a page and in Markdown.
/// The first column names the row. All cells are text that the caller has formatted (format.h):
/// within a column, equal decimals line up.
struct Table {
  std::string title = {};                           // above the table; "": none
  std::vector<Column> columns = {};                 // the heads, from left to right
  std::vector<std::vector<std::string>> rows = {};  // one cell a column; a missing one shows as "–"
  std::vector<std::string> notes = {};              // below the table
};

/// A <table> with a caption and row and column headers, inside an element that scrolls on its own
/// (html_page.h has the style).
DEMI_API std::string to_html(const Table& table);

/// The cell, or "–" where the row is short or the cell empty.
DEMI_API std::string cell(const Table& table, std::size_t row, std::size_t column);

/// The table for a terminal, every line ended by '\n'. A table that is too wide is never cut off:
/// the words of its header go below each other; if that is not enough, rows and columns are
/// exchanged; at last each row becomes a list.
DEMI_API std::string to_text(const Table& table, const Terminal& terminal);

}  // namespace demi::report
