#pragma once

#include <istream>
#include <string>

namespace demi::cli {

/// What an argument means: itself, "-" all of standard input, "@FILE" a file's content, as they
/// are, with the last line's end. Throws DataError for a file that cannot be read.
std::string text_of_prompt(const std::string& argument, std::istream& standard_input);

}  // namespace demi::cli
