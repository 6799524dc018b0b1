#pragma once

#include <cstddef>
#include <functional>
#include <string_view>

#include "demi/core/export.h"

namespace demi::data {

/// The tokenizer known as basic_english: lower case; spaces round ' . , ( ) ! ?; double quotes
/// removed; "<br />", ; and : to a space; split at white space. Lower case and white space are
/// Unicode's, as in Python's str.lower and str.split.
struct DEMI_API BasicEnglish {
  static constexpr std::size_t npos = static_cast<std::size_t>(-1);

  /// Calls `token` for each, with a view that is valid during the call. Returns npos, or the offset
  /// of the first byte that is not UTF-8; then no token has been given.
  std::size_t operator()(std::string_view text,
                         const std::function<void(std::string_view)>& token) const;
};

}  // namespace demi::data
