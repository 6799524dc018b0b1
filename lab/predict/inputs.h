#pragma once

#include <functional>
#include <istream>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "demi/core/export.h"

namespace demi::predict {

/// A picture or a text.
struct Input {
  std::string name;        // as it is shown: the path of a picture, the text itself
  std::string place = {};  // of a text out of a file: "FILE, line 3"; else ""
  std::string error = {};  // why there is no such picture or text; mostly empty
};

/// The streams of inputs and of notes.
struct Sources {
  std::istream& standard_input;  // for the argument "-"
  /// Called with notes: on what was passed over, and on what the user may have meant.
  std::function<void(const std::string&)> say;
};

/// The pictures that the arguments mean: a file; a folder, all .jpg, .jpeg and .png files below it
/// by the bytes of their paths (other files are named by `say`, hidden ones are not); @FILE or -, a
/// path a line. A picture that is not there has an error in its place.
DEMI_API std::vector<Input> picture_inputs(std::span<const std::string> arguments,
                                           const Sources& sources);

/// The texts that the arguments mean: one text; @FILE or -, one a line. Throws DataError for a FILE
/// that cannot be read.
DEMI_API std::vector<Input> text_inputs(std::span<const std::string> arguments,
                                        const Sources& sources);

/// The texts of that column of CSV or TSV files, by its heading. Throws UsageError for a column
/// that a file does not have, DataError as data::read_csv.
DEMI_API std::vector<Input> csv_inputs(std::span<const std::string> files, std::string_view column);

}  // namespace demi::predict
