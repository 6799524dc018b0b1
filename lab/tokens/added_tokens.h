#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace demi::tokens {

/// A text that is one token wherever it stands, as PyPI's package tokenizers has it.
struct AddedToken {
  std::string text;
  int32_t token = 0;
  /// Whether it means something else than its text: transformers leaves it out of what it decodes.
  bool special = true;
  /// Whether it is looked for between those that are not.
  bool normalized = false;

  bool operator==(const AddedToken&) const = default;
};

/// Finds added tokens in a text: the first place counts, and the longest token there. Makes one
/// pass over the text for any number of tokens.
class AddedTokens {
 public:
  explicit AddedTokens(std::vector<AddedToken> all);

  /// The offset of the next one, at `from` or behind it, and the token; the end, if there is none.
  std::pair<std::size_t, const AddedToken*> next(std::string_view text, std::size_t from) const;

 private:
  std::array<std::vector<AddedToken>, 256> of_byte_;  // by first byte, the longest first
};

}  // namespace demi::tokens
