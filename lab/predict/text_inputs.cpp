#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <system_error>
#include <utility>

#include "demi/core/error.h"
#include "demi/core/nearest.h"
#include "lab/data/csv.h"
#include "lab/files/damage.h"
#include "lab/predict/inputs.h"
#include "lab/predict/lines.h"

namespace demi::predict {
namespace {

namespace fs = std::filesystem;

std::string trimmed(const std::string& name) {
  const std::size_t first = name.find_first_not_of(' ');
  if (first == std::string::npos) return "";
  return name.substr(first, name.find_last_not_of(' ') - first + 1);
}

std::size_t column_of(const fs::path& file, const std::vector<std::string>& headings,
                      std::string_view column) {
  std::vector<std::string> names;
  for (const std::string& heading : headings) names.push_back(trimmed(heading));
  const auto found = std::ranges::find(names, column);
  if (std::ranges::count(names, column) > 1)
    throw UsageError({.where = "--csv",
                      .what = file.string() + " has several columns of that name in its first line",
                      .seen = column,
                      .advice = "take the other columns out, or give them other headings"});
  if (found != names.end()) return static_cast<std::size_t>(found - names.begin());
  throw UsageError({.where = "--csv",
                    .what = file.string() + " has no column of that name in its first line",
                    .seen = column,
                    .advice = did_you_mean(column, names)});
}

void add_column(const fs::path& file, std::string_view column, std::vector<Input>& inputs) {
  std::vector<data::CsvRecord> records = data::read_csv(file, data::separator_of(file));
  if (records.empty())
    files::report_damage({.where = "predict.csv_inputs",
                          .file = file,
                          .what = "there is no heading",
                          .place = "line 1",
                          .found = "an empty file",
                          .expected = "the names of the columns"});
  const std::size_t place = column_of(file, records[0].fields, column);
  for (std::size_t i = 1; i < records.size(); ++i)
    inputs.push_back({.name = std::move(records[i].fields[place]),
                      .place = fmt::format("{}, line {}", file.string(), records[i].line)});
}

// A file's name that is taken for a text is hardly meant so.
void say_if_file(const std::string& text, const Sources& sources) {
  std::error_code code;
  if (!text.empty() && fs::is_regular_file(text, code))
    sources.say(
        fmt::format("\"{}\" is predicted as a text; @{} means the lines of that file", text, text));
}

}  // namespace

std::vector<Input> text_inputs(std::span<const std::string> arguments, const Sources& sources) {
  std::vector<Input> inputs;
  for (const std::string& argument : arguments) {
    if (!names_lines(argument)) {
      say_if_file(argument, sources);
      inputs.push_back({.name = argument});
      continue;
    }
    for (Line& line : lines_of(argument, sources.standard_input))
      inputs.push_back({.name = std::move(line.text), .place = std::move(line.place)});
  }
  return inputs;
}

std::vector<Input> csv_inputs(std::span<const std::string> files, std::string_view column) {
  std::vector<Input> inputs;
  for (const std::string& file : files) add_column(file, column, inputs);
  return inputs;
}

}  // namespace demi::predict
