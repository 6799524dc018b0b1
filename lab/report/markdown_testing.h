#pragma once

#include <fmt/format.h>

#include <cstddef>
#include <string>
#include <string_view>

#include "lab/report/table.h"

namespace demi::report {

/// Text for one cell of a Markdown table: what Markdown or the HTML inside it would take as markup
/// is escaped, line ends become spaces.
inline std::string escape_markdown(std::string_view text) {
  std::string out;
  for (const char c : text) {
    if (c == '\n' || c == '\r') {
      out += ' ';
    } else if (c == '<') {
      out += "&lt;";
    } else if (c == '&') {
      out += "&amp;";
    } else {
      if (std::string_view("|*_`[]\\#~").find(c) != std::string_view::npos) out += '\\';
      out += c;
    }
  }
  return out;
}

/// GitHub's pipe table, the title in bold above it, the notes below.
inline std::string to_markdown(const Table& table) {
  std::string out;
  if (!table.title.empty()) out += fmt::format("**{}**\n\n", escape_markdown(table.title));
  std::string rule = "|";
  out += "|";
  for (const Column& column : table.columns) {
    const std::string unit = column.unit.empty() ? "" : fmt::format(" ({})", column.unit);
    out += fmt::format(" {} |", escape_markdown(column.name + unit));
    rule += column.align == Align::kLeft ? " :--- |" : " ---: |";
  }
  out.append("\n").append(rule).append("\n");
  for (std::size_t r = 0; r < table.rows.size(); ++r) {
    out += "|";
    for (std::size_t c = 0; c < table.columns.size(); ++c) {
      out += fmt::format(" {} |", escape_markdown(cell(table, r, c)));
    }
    out += "\n";
  }
  for (const std::string& note : table.notes) out += fmt::format("\n{}\n", escape_markdown(note));
  return out;
}

}  // namespace demi::report
