#pragma once

#include <string>
#include <string_view>

#include "demi/core/export.h"

namespace demi::tokens {

/// Bytes as they come, given out as whole characters: those of a token need not be UTF-8 by
/// themselves.
class DEMI_API Utf8Stream {
 public:
  /// Adds bytes, and returns the characters that are whole by now. Bytes that cannot become UTF-8
  /// are U+FFFD, one for each longest part that begins a character (The Unicode Standard, section
  /// 3.9, U+FFFD Substitution of Maximal Subparts), as by Python's decode(errors="replace").
  std::string add(std::string_view bytes);

  /// Ends the text: a character that is not whole is U+FFFD.
  std::string finish();

 private:
  std::string pending_;
};

}  // namespace demi::tokens
