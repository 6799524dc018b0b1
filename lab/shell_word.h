#pragma once

#include <string>
#include <string_view>

namespace demi::lab {

/// The text as one word of a line for a shell: as it is if no shell reads anything into it, else in
/// single quotes, '\'' for a quote.
inline std::string shell_word(std::string_view text) {
  constexpr std::string_view kPlain =
      "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_./:=,+@%-";
  if (!text.empty() && text.find_first_not_of(kPlain) == text.npos) return std::string(text);
  std::string word = "'";
  for (const char c : text)
    if (c == '\'')
      word += "'\\''";
    else
      word += c;
  return word + "'";
}

}  // namespace demi::lab
