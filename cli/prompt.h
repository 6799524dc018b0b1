#pragma once

#include <istream>
#include <string>

namespace demi::cli {

/// The text that an argument means: the argument itself, for "-" all of standard input, for "@FILE"
/// the file's content, each unchanged, with the last line's end. Throws DataError for a file that
/// cannot be read.
std::string text_of_prompt(const std::string& argument, std::istream& standard_input);

}  // namespace demi::cli
