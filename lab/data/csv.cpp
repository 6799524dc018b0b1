#include "lab/data/csv.h"

#include <fmt/format.h>

#include <algorithm>
#include <fstream>
#include <iterator>
#include <string_view>
#include <system_error>
#include <utility>

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
  CsvReader(const fs::path& file, std::string text, char separator, const DamageReport& report)
      : file_(file), text_(std::move(text)), separator_(separator), report_(report) {
    if (text_.starts_with("\xEF\xBB\xBF")) at_ = first_ = 3;
  }

  std::vector<CsvRecord> records() {
    std::vector<CsvRecord> all;
    std::size_t fields = 0;  // of the first record
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
  const DamageReport& report_;
  std::size_t at_ = 0, first_ = 0;
  int64_t line_ = 1;
  bool broken_ = false;  // the record that is being read
};

}  // namespace

std::vector<CsvRecord> read_csv(const fs::path& file, char separator, const DamageReport& report) {
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
  std::string text{std::istreambuf_iterator<char>(in), {}};
  return CsvReader(file, without_blank_end(std::move(text)), separator, report).records();
}

}  // namespace demi::data
