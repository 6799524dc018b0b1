#include "lab/predict/lines.h"

#include <fmt/format.h>

#include <cerrno>
#include <cstring>
#include <fstream>
#include <utility>

#include "lab/open_text.h"

namespace demi::predict {
namespace {

constexpr auto kLinesOf = "predict.lines_of";

// UTF-16's line ends in a byte 0, which is the first of the next line.
void require_utf8(const std::string& first, const std::string& place) {
  const auto wide = lab::wide_encoding_of(first);
  if (wide.empty()) return;
  throw DataError({.where = kLinesOf,
                   .what = place + " is not UTF-8",
                   .seen = wide,
                   .accepted = "UTF-8",
                   .advice = lab::kToUtf8});
}

std::vector<Line> lines_in(std::istream& in, const std::string& place) {
  std::vector<Line> lines;
  errno = 0;
  for (std::string text; std::getline(in, text);) {
    if (lines.empty()) require_utf8(text, place);
    if (text.ends_with('\r')) text.pop_back();
    lines.push_back({std::move(text), fmt::format("{}, line {}", place, lines.size() + 1)});
  }
  if (in.bad())  // which is not the end
    throw DataError({.where = kLinesOf,
                     .what = place + " cannot be read to its end",
                     .seen = std::strerror(errno),
                     .accepted = "one input a line"});
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
      lab::open_text(file, {.where = kLinesOf,
                            .what = "cannot be read: " + file,
                            .accepted = "a file with one input a line",
                            .advice = "@ in front of an argument means such a file"});
  return lines_in(in, file);
}

}  // namespace demi::predict
