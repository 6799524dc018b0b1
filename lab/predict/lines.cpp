#include "lab/predict/lines.h"

#include <fmt/format.h>

#include <fstream>
#include <utility>

#include "lab/open_text.h"

namespace demi::predict {
namespace {

std::vector<Line> lines_in(std::istream& in, const std::string& place) {
  std::vector<Line> lines;
  for (std::string text; std::getline(in, text);) {
    if (text.ends_with('\r')) text.pop_back();
    lines.push_back({std::move(text), fmt::format("{}, line {}", place, lines.size() + 1)});
  }
  constexpr std::string_view kByteOrderMark = "\xEF\xBB\xBF";
  if (!lines.empty() && lines.front().text.starts_with(kByteOrderMark))
    lines.front().text.erase(0, kByteOrderMark.size());
  return lines;
}

}  // namespace

bool names_lines(std::string_view argument) {
  return argument == "-" || (argument.starts_with('@') && argument.size() > 1);
}

std::vector<Line> lines_of(const std::string& argument, std::istream& standard_input) {
  if (argument == "-") return lines_in(standard_input, "standard input");
  const std::string file = argument.substr(1);
  std::ifstream in =
      lab::open_text(file, {.where = "predict.lines_of",
                            .what = "cannot be read: " + file,
                            .accepted = "a file with one input a line",
                            .advice = "@ in front of an argument means such a file"});
  return lines_in(in, file);
}

}  // namespace demi::predict
