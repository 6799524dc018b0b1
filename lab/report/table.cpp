#include "lab/report/table.h"

#include <fmt/format.h>

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

std::string to_markdown(const Table& table) {
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
