#pragma once

#include <istream>
#include <string>
#include <string_view>
#include <vector>

namespace demi::predict {

/// A line without its end, LF or CRLF.
struct Line {
  std::string text;
  std::string place;  // "FILE, line 3", "standard input, line 3"
};

/// Whether an argument is not itself an input: "@FILE" and "-".
bool names_lines(std::string_view argument);

/// The lines of the argument. Throws DataError for a FILE that cannot be read, or not to its end,
/// and for UTF-16.
std::vector<Line> lines_of(const std::string& argument, std::istream& standard_input);

}  // namespace demi::predict
