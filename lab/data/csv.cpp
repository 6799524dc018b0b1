#include "lab/data/csv.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cmath>
#include <cstring>
#include <fstream>
#include <iterator>
#include <map>
#include <optional>
#include <span>
#include <string_view>
#include <system_error>
#include <utility>

#include "demi/core/git_lfs.h"
#include "lab/files/gzip_reader.h"
#include "lab/open_text.h"

namespace demi::data {
namespace {

namespace fs = std::filesystem;

/// The text without blank lines at its end.
std::string without_blank_end(std::string text) {
  const std::size_t last = text.find_last_not_of(" \r\n");
  const std::size_t end = last == std::string::npos ? 0 : text.find('\n', last);
  if (end != std::string::npos) text.resize(last == std::string::npos ? 0 : end + 1);
  return text;
}

/// Whether there is no LF, and a CR outside of quotes.
bool ends_lines_with_cr(std::string_view text) {
  const std::size_t cr = text.find('\r');
  return cr != std::string_view::npos && text.find('\n') == std::string_view::npos &&
         std::ranges::count(text.substr(0, cr), '"') % 2 == 0;
}

struct Separator {
  char character;
  std::string_view plural;
};
constexpr Separator kSeparators[] = {
    {',', "commas"}, {'\t', "tabs"}, {';', "semicolons"}, {'|', "vertical bars"}};

std::string_view plural_of(char separator) {
  return std::ranges::find(kSeparators, separator, &Separator::character)->plural;
}

class CsvReader {
 public:
  CsvReader(const fs::path& file, std::string text, char separator,
            const files::DamageReport& report)
      : file_(file), text_(std::move(text)), separator_(separator), report_(report) {
    if (text_.starts_with("\xEF\xBB\xBF")) at_ = first_ = 3;
  }

  std::vector<CsvRecord> records() {
    std::vector<CsvRecord> all;
    std::size_t fields = 0;  // of the first record
    if (has_type_line()) return {};
    while (at_ < text_.size()) {
      const std::size_t start = at_;
      CsvRecord next = record();
      if (start == first_ && has_foreign_separator(next)) return {};
      if (fields == 0) fields = next.fields.size();
      if (next.fields.size() != fields && !broken_)
        damaged("another number of fields than in the first record", next.line,
                fmt::to_string(next.fields.size()), fmt::to_string(fields));
      if (!broken_) all.push_back(std::move(next));
    }
    return all;
  }

 private:
  bool at_line_end() const {
    return at_ == text_.size() || text_[at_] == '\n' || text_.compare(at_, 2, "\r\n") == 0;
  }

  /// Whether the file begins with PowerShell's line that names the exported type (Export-Csv).
  bool has_type_line() {
    if (text_.compare(at_, 6, "#TYPE ") != 0) return false;
    damaged("the first line is PowerShell's type", line_, text_.substr(at_, text_.find('\n') - at_),
            "columns", "take the line out, or export again with -NoTypeInformation");
    return true;
  }

  /// Whether there is one column, which another separator would divide.
  bool has_foreign_separator(const CsvRecord& first) {
    if (first.fields.size() != 1) return false;
    for (const Separator& other : kSeparators) {
      if (other.character == separator_ ||
          first.fields[0].find(other.character) == std::string::npos)
        continue;
      damaged("the first line has one column", first.line,
              fmt::format("{}, with {} in it", first.fields[0], other.plural),
              fmt::format("columns that are separated by {}", plural_of(separator_)),
              "save the file with commas as .csv, or with tabs as .tsv");
      return true;
    }
    return false;
  }

  CsvRecord record() {
    CsvRecord record{.fields = {}, .line = line_};
    broken_ = false;
    for (;;) {
      record.fields.push_back(at_ < text_.size() && text_[at_] == '"' ? quoted() : plain());
      if (at_line_end()) break;
      ++at_;  // the separator
    }
    if (at_ < text_.size()) at_ += text_[at_] == '\r' ? 2 : 1;
    ++line_;
    return record;
  }

  std::string plain() {
    const std::size_t start = at_;
    while (!at_line_end() && text_[at_] != separator_) ++at_;
    return text_.substr(start, at_ - start);
  }

  std::string quoted() {
    const int64_t opened = line_;
    std::string field;
    for (++at_;; ++at_) {
      if (at_ >= text_.size()) {
        damaged("a quote is never closed", opened, "the end of the file", "a closing quote");
        return field;
      }
      if (text_[at_] == '\n') ++line_;
      if (text_[at_] != '"') {
        field.push_back(text_[at_]);
      } else if (text_.compare(at_, 2, "\"\"") == 0) {
        field.push_back(text_[at_++]);
      } else {
        break;
      }
    }
    ++at_;
    if (!at_line_end() && text_[at_] != separator_) {
      damaged("text after a closing quote", line_, text_.substr(at_, 1),
              "a separator or the end of the line");
      while (!at_line_end()) ++at_;
    }
    return field;
  }

  void damaged(std::string_view what, int64_t line, std::string found, std::string expected,
               std::string_view advice = "write the file by RFC 4180") {
    broken_ = true;
    report_({.where = "data.read_csv",
             .file = file_,
             .what = what,
             .place = fmt::format("line {}", line),
             .found = std::move(found),
             .expected = std::move(expected),
             .advice = advice});
  }

  const fs::path& file_;
  std::string text_;
  char separator_;
  const files::DamageReport& report_;
  std::size_t at_ = 0, first_ = 0;
  int64_t line_ = 1;
  bool broken_ = false;  // the record that is being read
};

/// The file, and the function that its damage is reported to.
struct Source {
  const fs::path& file;
  const files::DamageReport& report;

  void damaged(std::string_view what, int64_t line, std::string found, std::string expected,
               std::string_view advice = "give a file with the columns label and text") const {
    report({.where = "data.read_labelled_texts",
            .file = file,
            .what = what,
            .place = fmt::format("line {}", line),
            .found = std::move(found),
            .expected = std::move(expected),
            .advice = advice});
  }
};

std::string without_spaces_around(std::string_view text) {
  const std::size_t first = text.find_first_not_of(' ');
  if (first == std::string_view::npos) return {};
  return std::string(text.substr(first, text.find_last_not_of(' ') - first + 1));
}

/// The form in which headings are compared: no spaces around, ASCII letters in lower case.
std::string plain(std::string_view name) {
  std::string text = without_spaces_around(name);
  for (char& c : text)
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  return text;
}

struct Columns {
  std::size_t label = 0, text = 1;
  bool heading = false;
};

/// The columns; nullopt if they are not clear, which is then reported.
std::optional<Columns> columns(const Source& source, const CsvRecord& first) {
  const auto find = [&](std::initializer_list<std::string_view> names) {
    std::vector<std::size_t> places;
    for (std::size_t i = 0; i < first.fields.size(); ++i)
      if (std::ranges::find(names, plain(first.fields[i])) != names.end()) places.push_back(i);
    return places;
  };
  const auto labels = find({"label", "sentiment", "class", "target"});
  const auto texts = find({"text", "review", "sentence"});
  if (!labels.empty() && !texts.empty()) {
    const auto& several = labels.size() > 1 ? labels : texts;
    if (several.size() == 1) return Columns{labels[0], texts[0], true};
    source.damaged("it is not clear which column is meant", first.line,
                   fmt::format("{} and {}", first.fields[several[0]], first.fields[several[1]]),
                   labels.size() > 1 ? "one column of labels" : "one column of texts",
                   "take the other column out, or give it another heading");
    return std::nullopt;
  }
  if (first.fields.size() == 2) return Columns{};
  source.damaged("it is not clear which columns are meant", first.line,
                 fmt::format("{} columns without these names", first.fields.size()),
                 "two columns, or a heading with label and text");
  return std::nullopt;
}

/// Any number as people and programs write it: 10, +1, -1, 2.50, 1e3. As exact as 64-bit integers.
std::optional<long double> as_number(std::string_view text) {
  if (text.starts_with('+') && !text.starts_with("+-")) text.remove_prefix(1);
  long double value = 0;
  const auto [end, code] = std::from_chars(text.data(), text.data() + text.size(), value);
  const bool number = code == std::errc() && end == text.data() + text.size();
  return number && std::isfinite(value) ? std::optional(value) : std::nullopt;
}

std::vector<std::string> classes_of(const Source& source, std::span<const CsvRecord> records,
                                    std::size_t column) {
  std::map<std::string, int64_t> lines;  // on which each label occurs first
  for (const CsvRecord& record : records) lines.emplace(record.fields[column], record.line);
  std::vector<std::string> classes;
  for (const auto& [name, line] : lines) classes.push_back(name);
  const auto value = [](const std::string& name) { return as_number(name); };
  if (!std::ranges::all_of(classes, [&](const auto& name) { return value(name).has_value(); }))
    return classes;
  std::ranges::sort(classes, {}, value);
  const auto twice = std::ranges::adjacent_find(classes, {}, value);
  if (twice != classes.end())
    source.damaged("a label that is a number is written in two ways", lines[*std::next(twice)],
                   fmt::format("{} and {}", *twice, *std::next(twice)), "one way for each label",
                   "write it in the same way on all lines");
  return classes;
}

/// Whether the first line may be pandas' heading of a frame whose columns have no names: 0,1 above
/// texts of which none is a number.
bool may_number_columns(std::span<const CsvRecord> rows, const Columns& column) {
  return rows.size() > 1 && rows[0].fields[column.label] == "0" &&
         rows[0].fields[column.text] == "1" &&
         std::ranges::none_of(rows.subspan(1), [&](const CsvRecord& row) {
           return as_number(row.fields[column.text]).has_value();
         });
}

/// A heading of unknown words would be trained on as a text of a class of its own. So without a
/// known heading the first line's label occurs in another line, too, or all labels are numbers.
void require_no_heading(const Source& source, std::span<const CsvRecord> rows,
                        const Columns& column, bool has_classes) {
  const std::string& first = rows[0].fields[column.label];
  const bool again = std::ranges::any_of(
      rows.subspan(1), [&](const CsvRecord& row) { return row.fields[column.label] == first; });
  const bool all_numbers = std::ranges::all_of(
      rows, [&](const CsvRecord& row) { return as_number(row.fields[column.label]).has_value(); });
  const bool numbers_columns = may_number_columns(rows, column);
  if (numbers_columns || (!again && !all_numbers && !has_classes))
    source.damaged(
        numbers_columns
            ? "it is not clear whether the first line is a heading: it may number the columns"
            : "it is not clear whether the first line is a heading: its label occurs nowhere else",
        rows[0].line, numbers_columns ? "0 and 1" : first,
        "a heading of one of label, sentiment, class, target and one of text, review, sentence; "
        "or two texts or more of each label");
}

/// The classes of a training file: those of its labels.
std::vector<std::string> training_classes(const Source& source, std::span<const CsvRecord> rows,
                                          const Columns& column) {
  std::vector<std::string> classes = classes_of(source, rows, column.label);
  if (classes.size() == 1)
    source.damaged("all texts have one label", rows[0].line, classes.front(), "two labels or more",
                   "train on texts of several classes");
  return classes;
}

}  // namespace

char separator_of(const fs::path& file) {
  const fs::path name = file.extension() == ".gz" ? file.stem() : file;
  return name.extension() == ".tsv" || name.extension() == ".tab" ? '\t' : ',';
}

std::vector<CsvRecord> read_csv(const fs::path& file, char separator,
                                const files::DamageReport& report) {
  std::ifstream in(file, std::ios::binary);
  std::error_code unreadable;
  if (!fs::is_regular_file(file, unreadable) || !in) {
    report({.where = "data.read_csv",
            .file = file,
            .what = "cannot be opened",
            .found = "no such file or no permission",
            .expected = "a CSV or TSV file"});
    return {};
  }
  std::optional<std::string> text = lab::rest_of(in);
  const auto refuse_text = [&](std::string_view what, std::string found, std::string_view advice) {
    report({.where = "data.read_csv",
            .file = file,
            .what = what,
            .found = std::move(found),
            .expected = "a CSV or TSV file in UTF-8",
            .advice = advice});
    return std::vector<CsvRecord>();
  };
  if (!text) return refuse_text("cannot be read", std::strerror(errno), "get another copy of it");
  if (text->starts_with("\x1f\x8b")) text = files::read_gzip("data.read_csv", file);
  if (text->starts_with("PK\3\4"))
    return refuse_text("the file is a zip archive", "PK, as .zip and .xlsx begin",
                       "unpack it, or save the sheet of an .xlsx as CSV in UTF-8");
  if (ends_lines_with_cr(*text))
    return refuse_text("the lines are not ended as in CSV", "CR alone, as on an old Macintosh",
                       "convert it: tr '\\r' '\\n' < FILE > NEW");
  if (is_git_lfs_pointer(*text))
    return refuse_text("the file is not there", kGitLfsPointer, kGitLfsAdvice);
  if (const auto wide = lab::wide_encoding_of(*text); !wide.empty())
    return refuse_text("the text is not UTF-8", std::string(wide), lab::kToUtf8);
  return CsvReader(file, without_blank_end(*std::move(text)), separator, report).records();
}

LabelledTexts read_labelled_texts(const fs::path& file, std::vector<std::string> classes,
                                  const files::DamageReport& report) {
  const Source source{file, report};
  bool whole = true;  // a file of which nothing could be read is not reported twice
  std::vector<CsvRecord> records =
      read_csv(file, separator_of(file), [&](const files::Damage& damage) {
        whole = false;
        report(damage);
      });
  const auto column = records.empty() ? std::nullopt : columns(source, records[0]);
  if (column && column->heading) records.erase(records.begin());
  if (records.empty() && whole)
    source.damaged("there are no texts", 1, column ? "a heading alone" : "an empty file",
                   "at least one");
  if (records.empty() || !column) return {.sources = {}, .classes = std::move(classes)};
  for (CsvRecord& row : records) {
    std::string& label = row.fields[column->label];
    label = without_spaces_around(label);
    if (label.empty())
      source.damaged("the text has no label", row.line, "nothing but spaces", "a label",
                     "give it one, or take the line out");
  }
  std::erase_if(records, [&](const CsvRecord& row) { return row.fields[column->label].empty(); });
  if (records.empty()) return {.sources = {}, .classes = std::move(classes)};
  if (!column->heading) require_no_heading(source, records, *column, !classes.empty());
  if (classes.empty()) classes = training_classes(source, records, *column);
  std::vector<TextSource> sources;
  for (CsvRecord& row : records) {
    const auto label = std::ranges::find(classes, row.fields[column->label]);
    if (label == classes.end()) {
      source.damaged("a label is unknown", row.line, row.fields[column->label],
                     fmt::format("{}", fmt::join(classes, ", ")),
                     "these are the labels of the training: give a file of texts with no other");
      continue;
    }
    sources.push_back({.read = [text = std::move(row.fields[column->text])] { return text; },
                       .label = label - classes.begin(),
                       .place = fmt::format("{}, line {}", file.string(), row.line)});
  }
  return {.sources = std::move(sources), .classes = std::move(classes)};
}

}  // namespace demi::data
