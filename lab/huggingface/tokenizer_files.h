#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "lab/tokens/tokenizer.h"

namespace demi::huggingface {

/// Writes the files of a tokenizer of byte pairs: tokenizer.json, as PyPI's package tokenizers
/// writes it, tokenizer_config.json, and vocab.json with merges.txt. Writes nothing for other
/// tokenizers. `context`: tokens that the model reads. Returns the names of the files.
std::vector<std::string> write_tokenizer(const std::filesystem::path& folder,
                                         const tokens::TokenizerTexts& tokenizer, int64_t context);

/// The token <|endoftext|>; -1 if there is none.
int64_t end_of_text(const tokens::TokenizerTexts& tokenizer);

}  // namespace demi::huggingface
