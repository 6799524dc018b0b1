#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "demi/core/export.h"

namespace demi::report {

/// The abilities of a file descriptor. The default is a plain file: no width, no control
/// characters, ASCII.
struct Terminal {
  int fd = -1;               // asked again for its width when the line is redrawn
  std::size_t width = 0;     // columns; 0: no limit (a file, a pipe)
  bool interactive = false;  // a terminal that understands control characters: lines may be redrawn
  bool colour = false;       // interactive, and NO_COLOR (no-color.org) is not set
  bool utf8 = false;         // LC_ALL, LC_CTYPE or LANG, the first one set, names UTF-8

  /// Looks at the descriptor, at TERM ("dumb" or none: not interactive), NO_COLOR and the locale's
  /// variables.
  DEMI_API static Terminal of(int fd);

  /// The width now: the user may have resized the window.
  DEMI_API std::size_t current_width() const;
};

/// Columns that UTF-8 text takes: 2 for wide (East Asian, emoji) characters, 0 for combining ones.
DEMI_API std::size_t display_width(std::string_view text);

/// The text cut to at most `columns`, never inside a character.
DEMI_API std::string cut_to_width(std::string_view text, std::size_t columns);

/// Arranges words in lines, as many on a line as `columns` hold; a longer word has a line of its
/// own.
DEMI_API std::vector<std::string> wrap_words(std::string_view text, std::size_t columns);

/// Text that a terminal can be shown: control characters and broken UTF-8 become '?', so that a
/// name cannot move the cursor; without UTF-8 what has an ASCII likeness takes it (× x, µ u, – -, …
/// ...), the rest becomes '?'.
DEMI_API std::string printable(std::string_view text, bool utf8);

}  // namespace demi::report
