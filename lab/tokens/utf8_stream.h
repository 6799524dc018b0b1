#pragma once

#include <string>
#include <string_view>

#include "demi/core/export.h"

namespace demi::tokens {

/// Bytes as they come, given out as whole characters: those of a token need not be UTF-8 by
/// themselves.
class DEMI_API Utf8Stream {
 public:
  /// What is whole by now. What cannot become UTF-8 is U+FFFD, one for each longest part that
  /// begins a character (The Unicode Standard, section 3.9, U+FFFD Substitution of Maximal
  /// Subparts), as Python's decode(errors="replace") has it.
  std::string add(std::string_view bytes);

  /// The end: a character that is not whole is U+FFFD.
  std::string finish();

 private:
  std::string pending_;
};

}  // namespace demi::tokens
