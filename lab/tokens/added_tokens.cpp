#include "lab/tokens/added_tokens.h"

#include <algorithm>

namespace demi::tokens {

AddedTokens::AddedTokens(std::vector<AddedToken> all) {
  std::ranges::stable_sort(all, std::ranges::greater(),
                           [](const AddedToken& one) { return one.text.size(); });
  for (AddedToken& one : all) {
    if (one.text.empty()) continue;
    of_byte_[static_cast<unsigned char>(one.text.front())].push_back(std::move(one));
  }
}

std::pair<std::size_t, const AddedToken*> AddedTokens::next(std::string_view text,
                                                            std::size_t from) const {
  for (std::size_t at = from; at < text.size(); ++at)
    for (const AddedToken& one : of_byte_[static_cast<unsigned char>(text[at])])
      if (text.substr(at).starts_with(one.text)) return {at, &one};
  return {text.size(), nullptr};
}

}  // namespace demi::tokens
