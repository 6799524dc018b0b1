#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <string_view>

#include "demi/core/export.h"
#include "lab/data/token_windows.h"
#include "lab/tokens/tokenizer.h"

namespace demi::data {

/// Tokens to train on and to test on.
struct TokenSet {
  TokenSpan train, test;   // its parts
  int64_t vocabulary = 0;  // tokens are below it
  /// Null: the files hold tokens without a tokenizer.
  std::shared_ptr<const tokens::Tokenizer> tokenizer;
};

/// The tokenizer that numbers a text: "characters" (those of the text itself), "bytes", or the path
/// of byte pairs (tokens::read_byte_pairs). Throws DataError.
DEMI_API std::shared_ptr<const tokens::Tokenizer> token_numbering(std::string_view word,
                                                                  std::string_view text);

/// Reads UTF-8 texts. Without a second file (an empty path), the last tenth of the first one's
/// tokens is the test set. Throws DataError: no such file, not UTF-8, in the second file a
/// character that the first one lacks, fewer than two tokens in a part.
DEMI_API TokenSet read_token_texts(const std::filesystem::path& train,
                                   const std::filesystem::path& test, std::string_view tokenizer);

/// The tokens of a text, by a tokenizer that is known. Throws DataError: no such file, what the
/// tokenizer does not know, fewer than two tokens.
DEMI_API TokenSpan read_test_tokens(const std::filesystem::path& path,
                                    const tokens::Tokenizer& tokenizer);

/// Reads the tokens of a published text, by characters, bytes or byte pairs. Throws DataError, and
/// UsageError for a set of another kind.
DEMI_API TokenSet load_token_text(std::string_view name, const std::filesystem::path& data_dir,
                                  std::string_view tokenizer);

/// Maps token files (tokens::open_token_files), likewise. Throws DataError, and as it is read for a
/// token beyond the vocabulary.
DEMI_API TokenSet open_token_sets(const std::string& train, const std::string& test,
                                  int64_t vocabulary);

}  // namespace demi::data
