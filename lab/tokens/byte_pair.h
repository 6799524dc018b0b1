#pragma once

#include <filesystem>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "demi/core/export.h"
#include "lab/tokens/added_tokens.h"
#include "lab/tokens/tokenizer.h"

namespace demi::tokens {

/// The data of a byte-level byte pair encoder (Sennrich, Haddow, Birch, "Neural machine translation
/// of rare words with subword units", ACL 2016, section 3.2; bytes as symbols: Radford et al.
/// 2019). Symbols are texts in GPT-2's form: each byte is a printable character (byte_symbol), so
/// that no symbol holds white space.
struct BytePairs {
  std::vector<std::string> symbols;                         // by token
  std::vector<std::pair<std::string, std::string>> merges;  // the first one is applied first
  std::vector<AddedToken> added = {};
  bool prefix_blank = false;  // a text that begins with no blank gets one in front
};

/// Throws DataError: a byte that is no symbol, symbols that are not distinct, a merge whose parts
/// or result are no symbols, an added token with a gap in front of its number, another number than
/// its symbol or two numbers.
DEMI_API std::unique_ptr<Tokenizer> byte_pair_tokenizer(const BytePairs& pairs);

/// Reads tokenizer.json, or vocab.json and the merges.txt in the same folder (either of the two, or
/// the folder, names them), and what tokenizer_config.json, special_tokens_map.json and
/// added_tokens.json beside them say of special tokens. Vocabulary and merges alone are GPT-2's:
/// <|endoftext|> is one token if it has a number. Truncation and padding are left out, as
/// transformers leaves them out of each call. Throws DataError: no such file, not JSON, numbers
/// with a gap, and by its name what makes other numbers of a text than GPT-2's tokenizer would.
DEMI_API BytePairs read_byte_pairs(const std::filesystem::path& path);

/// Vocabulary and merges as a model's file holds them, and back. Throws DataError for others.
TokenizerTexts texts_of(const BytePairs& pairs);
BytePairs byte_pairs_of(const TokenizerTexts& texts);

/// The printable character, in UTF-8, that stands for a byte.
DEMI_API std::string byte_symbol(unsigned char byte);

}  // namespace demi::tokens
