#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "lab/tokens/added_tokens.h"

namespace demi::tokens {

/// The texts that are one token, and the other settings of the tokenizer in the files beside a
/// vocabulary.
struct SpecialTokens {
  std::vector<AddedToken> numbered;  // by tokenizer_config.json and added_tokens.json
  std::vector<std::string> named;  // bos_token and the like, which have a number in the vocabulary
  bool end_is_one = false;         // GPT-2's class: so has <|endoftext|>, if it is there
  std::optional<bool> prefix_blank;  // add_prefix_space
};

/// Reads tokenizer_config.json, special_tokens_map.json and added_tokens.json, as far as they are
/// there. `is_whole`: beside tokenizer.json, which names the tokens of its class itself; else a
/// class that is not GPT-2's is refused, and <|endoftext|> is unk_token, bos_token and eos_token
/// unless they are set. Throws DataError, with its name, for a setting that would give a text other
/// numbers: add_bos_token, add_eos_token, blanks that belong to a token.
SpecialTokens read_special_tokens(const std::filesystem::path& folder, bool is_whole);

}  // namespace demi::tokens
