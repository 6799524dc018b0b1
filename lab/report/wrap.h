#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include "demi/core/export.h"
#include "lab/report/terminal.h"

namespace demi::report {

/// The words below each other in lines of `width` columns, each with its end; all but the first are
/// `indent` columns from the left, where the first one begins, too. A word longer than a line is
/// broken. `width` 0: one line.
DEMI_API std::string wrapped(std::string_view words, std::size_t indent, std::size_t width);

/// Lines of `text`, unchanged if they fit, else wrapped, with further lines indented to the line's
/// first word. `kind`, such as "note: ", stands in front of the first line. Ends with a line's end.
/// `width` 0: nothing is wrapped, so that a file has a line for each note.
DEMI_API std::string message_lines(std::string_view kind, std::string_view text, std::size_t width);

/// Columns of --help: the environment's COLUMNS, else the terminal's, and 100 at most, which a file
/// and a pipe have. At least 50.
DEMI_API std::size_t help_width(const Terminal& terminal);

}  // namespace demi::report
