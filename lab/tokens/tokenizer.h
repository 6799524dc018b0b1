#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "demi/core/export.h"

namespace demi::tokens {

/// A tokenizer as texts, which a model's file holds.
struct TokenizerTexts {
  std::string name = {};        // Tokenizer::name(); empty: there is none
  std::string vocabulary = {};  // characters by number; of byte pairs a JSON array of symbols
  std::string merges = {};      // of byte pairs, as JSON

  bool operator==(const TokenizerTexts&) const = default;
};

/// Text as numbers in [0, size()), and back. Constant after it is made, so several threads may use
/// one.
class DEMI_API Tokenizer {
 public:
  virtual ~Tokenizer() = default;

  /// "characters", "bytes" or "bpe".
  virtual std::string_view name() const = 0;
  /// How many tokens there are.
  virtual int64_t size() const = 0;
  /// The texts that a model file keeps of it.
  virtual TokenizerTexts texts() const = 0;

  /// Throws DataError with the offset: text that is not UTF-8, a character that it does not know.
  virtual std::vector<int32_t> encode(std::string_view text) const = 0;

  /// The bytes of these tokens in a row. The bytes of one token need not be UTF-8 by themselves: a
  /// character may be several tokens. Throws UsageError for a number that is no token.
  virtual std::string decode(std::span<const int32_t> tokens) const = 0;
};

/// The distinct code points of `text` by their value, as nanoGPT numbers them. Throws DataError:
/// text that is not UTF-8, fewer than two distinct characters.
DEMI_API std::unique_ptr<Tokenizer> characters_of(std::string_view text);

/// A tokenizer whose tokens are the 256 bytes.
DEMI_API std::unique_ptr<Tokenizer> bytes();

/// The tokenizer whose texts() these are; null without a name, and of byte pairs without their
/// texts, which files of older versions lack. Throws DataError for texts that are damaged.
DEMI_API std::unique_ptr<Tokenizer> tokenizer_of(const TokenizerTexts& texts);

/// Whether two are the same as far as both have texts.
DEMI_API bool agree(const TokenizerTexts& one, const TokenizerTexts& other);

}  // namespace demi::tokens
