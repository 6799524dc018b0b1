#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "demi/core/export.h"
#include "lab/data/vocabulary.h"

namespace demi::data {

/// Texts as numbers of words. Text i is tokens[offsets[i]] to tokens[offsets[i + 1]]; an empty text
/// is one <unk>.
struct TextSet {
  at::Tensor tokens;   // (all tokens) int32
  at::Tensor offsets;  // (N + 1) int64, rising
  at::Tensor labels;   // (N) int64
  std::string name;    // of the set, for messages

  /// How many texts there are.
  int64_t size() const { return labels.size(0); }
};

/// Two splits and what they share. The vocabulary is that of the training split.
struct TextCorpus {
  /// The splits.
  TextSet train, test;
  std::vector<std::string> classes;              // names, by number
  std::shared_ptr<const Vocabulary> vocabulary;  // its words and their numbers
  std::string note;  // for people: why the tokenized texts could not be cached; mostly empty
};

/// A text that is still to be read. `read` is called from several threads.
struct TextSource {
  std::function<std::string()> read;
  int64_t label = 0;  // its class
  std::string place;  // for messages: a file, or a file and a line
};

/// Reads and tokenizes (BasicEnglish) in parallel, at::get_num_threads() threads. The result does
/// not depend on their number. Throws DataError if a text is not UTF-8: place, offset, byte.
DEMI_API TextCorpus tokenize(const std::vector<TextSource>& train,
                             const std::vector<TextSource>& test, std::vector<std::string> classes,
                             const std::string& name);

/// Tokenizes texts alone, numbered by a given vocabulary: words that are not in it are <unk>.
DEMI_API TextSet tokenize(const std::vector<TextSource>& texts, const Vocabulary& vocabulary,
                          std::string name);

/// Texts that `from` has numbered, by the numbers of `to`. Words that `from` lacks are <unk>
/// already.
DEMI_API TextSet renumbered(TextSet texts, const Vocabulary& from, const Vocabulary& to);

/// Whether `from` has each word of `to`: then renumbered() loses no word that `to` has.
DEMI_API bool has_all_words(const Vocabulary& from, const Vocabulary& to);

/// The share of <unk> among the tokens, 0 to 1; 0 of no texts.
DEMI_API double unknown_share(const TextSet& texts);

}  // namespace demi::data
