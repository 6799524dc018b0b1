#include "lab/data/csv_texts.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <optional>
#include <set>
#include <span>
#include <string_view>
#include <utility>

#include "lab/data/csv.h"
#include "lab/data/damage.h"

namespace demi::data {
namespace {

namespace fs = std::filesystem;

[[noreturn]] void fail(const fs::path& file, std::string_view what, int64_t line, std::string found,
                       std::string expected) {
  report_damage({.where = "data.read_labelled_texts",
                 .file = file,
                 .what = what,
                 .place = fmt::format("line {}", line),
                 .found = std::move(found),
                 .expected = std::move(expected),
                 .advice = "give a file with the columns label and text"});
}

/// The form in which headings are compared: no spaces around, ASCII letters in lower case.
std::string plain(std::string_view name) {
  const std::size_t first = name.find_first_not_of(' ');
  if (first == std::string_view::npos) return {};
  std::string text(name.substr(first, name.find_last_not_of(' ') - first + 1));
  for (char& c : text)
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  return text;
}

struct Columns {
  std::size_t label = 0, text = 1;
  bool heading = false;
};

Columns columns(const fs::path& file, const CsvRecord& first) {
  const auto find =
      [&](std::initializer_list<std::string_view> names) -> std::optional<std::size_t> {
    for (std::size_t i = 0; i < first.fields.size(); ++i)
      if (std::ranges::find(names, plain(first.fields[i])) != names.end()) return i;
    return std::nullopt;
  };
  const auto label = find({"label", "sentiment", "class", "target"});
  const auto text = find({"text", "review", "sentence"});
  if (label && text) return {*label, *text, true};
  if (first.fields.size() != 2)
    fail(file, "it cannot be told which columns are meant", 1,
         fmt::format("{} columns without these names", first.fields.size()),
         "two columns, or a heading with label and text");
  return {};
}

std::optional<long> as_number(const std::string& text) {
  long value = 0;
  const auto [end, code] = std::from_chars(text.data(), text.data() + text.size(), value);
  return code == std::errc() && end == text.data() + text.size() ? std::optional(value)
                                                                 : std::nullopt;
}

std::vector<std::string> classes_of(std::span<const CsvRecord> records, std::size_t column) {
  std::set<std::string> distinct;
  for (const CsvRecord& record : records) distinct.insert(record.fields[column]);
  std::vector<std::string> classes(distinct.begin(), distinct.end());
  if (std::ranges::all_of(classes,
                          [](const std::string& name) { return as_number(name).has_value(); }))
    std::ranges::sort(classes, {}, [](const std::string& name) { return *as_number(name); });
  return classes;
}

/// A heading of unknown words would be trained on as a text of a class of its own. So without a
/// known heading the first line's label is a number or stands in another line, too.
void require_no_heading(const fs::path& file, std::span<const CsvRecord> rows, std::size_t column) {
  const std::string& first = rows[0].fields[column];
  const bool again = std::ranges::any_of(
      rows.subspan(1), [&](const CsvRecord& row) { return row.fields[column] == first; });
  if (!again && !as_number(first))
    fail(file,
         "it cannot be told whether the first line is a heading: its label stands nowhere else", 1,
         first,
         "a heading of one of label, sentiment, class, target and one of text, review, sentence; "
         "or two texts or more of each label");
}

}  // namespace

LabelledTexts read_labelled_texts(const fs::path& file, std::vector<std::string> classes) {
  const bool tabs = file.extension() == ".tsv" || file.extension() == ".tab";
  std::vector<CsvRecord> records = read_csv(file, tabs ? '\t' : ',');
  if (records.empty()) fail(file, "there are no texts", 1, "an empty file", "at least one");
  const Columns column = columns(file, records[0]);
  const std::span rows = std::span(records).subspan(column.heading ? 1 : 0);
  if (rows.empty()) fail(file, "there are no texts", 1, "a heading alone", "at least one");
  if (classes.empty()) {
    if (!column.heading) require_no_heading(file, rows, column.label);
    classes = classes_of(rows, column.label);
  }
  std::vector<TextSource> sources;
  for (CsvRecord& row : rows) {
    const auto label = std::ranges::find(classes, row.fields[column.label]);
    if (label == classes.end())
      fail(file, "a label is unknown", row.line, row.fields[column.label],
           fmt::format("{}", fmt::join(classes, ", ")));
    sources.push_back({.read = [text = std::move(row.fields[column.text])] { return text; },
                       .label = label - classes.begin(),
                       .place = fmt::format("{}, line {}", file.string(), row.line)});
  }
  return {.sources = std::move(sources), .classes = std::move(classes)};
}

}  // namespace demi::data
