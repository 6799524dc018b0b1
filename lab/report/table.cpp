#include "lab/report/table.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>

#include "lab/report/markup.h"

namespace demi::report {
namespace {

std::string heading(const Column& column) {
  std::string text = escape_html(column.name);
  if (!column.unit.empty()) text += " <span class=\"unit\">" + escape_html(column.unit) + "</span>";
  return text;
}

std::string side(const Column& column) {
  return column.align == Align::kLeft ? " class=\"left\"" : "";
}

// Sentences wrap, where names and numbers scroll.
constexpr std::size_t kLongestName = 32;

std::string side(const Column& column, const std::string& text) {
  const bool is_sentence = text.size() > kLongestName && text.find(' ') != text.npos;
  return column.align == Align::kLeft && is_sentence ? " class=\"left text\"" : side(column);
}

constexpr std::size_t kGap = 2;  // blank columns between two columns of figures

struct Style {
  bool colour;
  bool utf8;

  std::string shown(std::string_view text) const { return printable(text, utf8); }
  std::string bold(const std::string& text) const {
    return colour ? "\x1b[1m" + text + "\x1b[0m" : text;
  }
  std::string dim(const std::string& text) const {
    return colour ? "\x1b[2m" + text + "\x1b[0m" : text;
  }
};

std::string spaces(std::size_t count) { return std::string(count, ' '); }

std::string padded(const std::string& text, std::size_t width, Align align) {
  const std::size_t missing = width - std::min(width, display_width(text));
  return align == Align::kRight ? spaces(missing) + text : text + spaces(missing);
}

/// A table as it will be shown: printable cells, and for each column its width and the lines of its
/// header.
struct Grid {
  std::vector<Align> aligns;
  std::vector<std::vector<std::string>> headers;  // per column: lines, the last one is the unit
  std::vector<std::vector<std::string>> rows;
  std::vector<std::size_t> widths;
  std::size_t header_lines = 0;

  std::size_t width() const {
    return std::accumulate(widths.begin(), widths.end(), std::size_t{0}) +
           kGap * (widths.size() - 1);
  }
};

std::string named(const Column& column) {
  return column.unit.empty() ? column.name : column.name + " (" + column.unit + ")";
}

void measure(Grid& grid, const Table& table, const Style& style, bool wrap_headers) {
  const bool units = std::any_of(table.columns.begin(), table.columns.end(),
                                 [](const Column& c) { return !c.unit.empty(); });
  for (std::size_t c = 0; c < table.columns.size(); ++c) {
    std::size_t width = 0;
    for (const auto& row : grid.rows) width = std::max(width, display_width(row[c]));
    const std::string name = style.shown(table.columns[c].name);
    const std::string unit = style.shown(table.columns[c].unit);
    std::vector<std::string> lines = wrap_words(name, wrap_headers ? width : display_width(name));
    if (units) lines.push_back(unit);
    for (const std::string& line : lines) width = std::max(width, display_width(line));
    grid.header_lines = std::max(grid.header_lines, lines.size());
    grid.headers.push_back(std::move(lines));
    grid.aligns.push_back(table.columns[c].align);
    grid.widths.push_back(width);
  }
}

Grid lay_out(const Table& table, const Style& style, bool wrap_headers) {
  Grid grid;
  for (std::size_t r = 0; r < table.rows.size(); ++r) {
    std::vector<std::string>& row = grid.rows.emplace_back();
    for (std::size_t c = 0; c < table.columns.size(); ++c)
      row.push_back(style.shown(cell(table, r, c)));
  }
  measure(grid, table, style, wrap_headers);
  return grid;
}

/// Rows and columns exchanged: each quantity a row, so that a few rows with many figures fit a
/// narrow window.
Table exchanged(const Table& table) {
  Table other{.columns = {{table.columns[0].name, "", Align::kLeft}}};
  for (std::size_t r = 0; r < table.rows.size(); ++r)
    other.columns.push_back({cell(table, r, 0), ""});
  for (std::size_t c = 1; c < table.columns.size(); ++c) {
    std::vector<std::string>& row =
        other.rows.emplace_back(std::vector<std::string>{named(table.columns[c])});
    for (std::size_t r = 0; r < table.rows.size(); ++r) row.push_back(cell(table, r, c));
  }
  return other;
}

void trim_end(std::string& line) { line.erase(line.find_last_not_of(' ') + 1); }

std::string draw(const Grid& grid, const Style& style) {
  const auto line = [&](const auto& text_of) {
    std::string out;
    for (std::size_t c = 0; c < grid.widths.size(); ++c) {
      out += (c == 0 ? "" : spaces(kGap)) + padded(text_of(c), grid.widths[c], grid.aligns[c]);
    }
    trim_end(out);
    return out;
  };
  std::string out;
  for (std::size_t i = 0; i < grid.header_lines; ++i) {
    const std::string header = line([&](std::size_t c) {
      const std::size_t empty =
          grid.header_lines - grid.headers[c].size();  // names are at the bottom
      return i < empty ? std::string() : grid.headers[c][i - empty];
    });
    out += style.dim(header) + "\n";
  }
  std::string rule;
  for (std::size_t i = 0; i < grid.width(); ++i) rule += style.utf8 ? "─" : "-";
  out += style.dim(rule) + "\n";
  for (const auto& row : grid.rows) out += line([&](std::size_t c) { return row[c]; }) + "\n";
  return out;
}

/// The narrowest form: a block for each row, with a line `name  value` for each cell.
std::string draw_list(const Table& table, const Style& style, std::size_t width) {
  std::string out;
  for (std::size_t r = 0; r < table.rows.size(); ++r) {
    out += (r == 0 ? "" : "\n") + style.bold(style.shown(cell(table, r, 0))) + "\n";
    for (std::size_t c = 1; c < table.columns.size(); ++c) {
      const std::string name = "  " + style.shown(named(table.columns[c]));
      const std::string value = style.shown(cell(table, r, c));
      const std::size_t used = display_width(name) + 1 + display_width(value);
      out += name + (used <= width ? spaces(width - used + 1) : "\n    ") + value + "\n";
    }
  }
  return out;
}

std::string body(const Table& table, const Style& style, std::size_t width) {
  const auto fits = [&](const Grid& grid) { return width == 0 || grid.width() <= width; };
  if (Grid grid = lay_out(table, style, false); fits(grid)) return draw(grid, style);
  if (Grid grid = lay_out(table, style, true); fits(grid)) return draw(grid, style);
  if (Grid grid = lay_out(exchanged(table), style, true); fits(grid)) return draw(grid, style);
  return draw_list(table, style, width);
}

std::string paragraph(const std::string& text, std::size_t width) {
  std::string out;
  if (width == 0) return text + "\n";
  for (const std::string& line : wrap_words(text, width)) out += line + "\n";
  return out;
}

}  // namespace

std::string cell(const Table& table, std::size_t row, std::size_t column) {
  const auto& cells = table.rows[row];
  return column < cells.size() && !cells[column].empty() ? cells[column] : "–";
}

std::string to_html(const Table& table) {
  std::string out = "<figure class=\"table\">\n<div class=\"scroll\" tabindex=\"0\">\n<table>\n";
  if (!table.title.empty()) out += fmt::format("<caption>{}</caption>\n", escape_html(table.title));
  out += "<thead><tr>";
  for (const Column& column : table.columns) {
    out += fmt::format("<th scope=\"col\"{}>{}</th>", side(column), heading(column));
  }
  out += "</tr></thead>\n<tbody>\n";
  for (std::size_t r = 0; r < table.rows.size(); ++r) {
    out += "<tr>";
    for (std::size_t c = 0; c < table.columns.size(); ++c) {
      const std::string text = escape_html(cell(table, r, c));
      out += c == 0 ? fmt::format("<th scope=\"row\"{}>{}</th>", side(table.columns[c]), text)
                    : fmt::format("<td{}>{}</td>", side(table.columns[c], cell(table, r, c)), text);
    }
    out += "</tr>\n";
  }
  out += "</tbody>\n</table>\n</div>\n";
  if (!table.notes.empty()) {
    out += "<figcaption>";
    for (const std::string& note : table.notes) out += fmt::format("<p>{}</p>", escape_html(note));
    out += "</figcaption>\n";
  }
  return out + "</figure>\n";
}

std::string to_text(const Table& table, const Terminal& terminal) {
  const Style style{terminal.colour, terminal.utf8};
  std::string out;
  if (!table.title.empty()) out += style.bold(style.shown(table.title)) + "\n\n";
  if (!table.columns.empty()) out += body(table, style, terminal.width);
  if (!table.notes.empty()) out += "\n";
  for (const std::string& note : table.notes)
    out += style.dim(paragraph(style.shown(note), terminal.width));
  return out;
}

}  // namespace demi::report
