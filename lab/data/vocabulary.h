#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "demi/core/export.h"

namespace demi::data {

/// A word, and how often it occurs.
struct WordCount {
  std::string word;  // in UTF-8
  int64_t count;     // how often it occurs
};

/// Words and their numbers: 0 is "<unk>", which is also the number of every word that is not in it;
/// then the words by falling frequency, those of equal frequency in the order of their bytes (which
/// is that of their Unicode code points).
class DEMI_API Vocabulary {
 public:
  Vocabulary() : Vocabulary(std::vector<WordCount>{}) {}

  /// Distinct words in any order.
  explicit Vocabulary(std::vector<WordCount> counts);
  /// Words in their final order, "<unk>" first (as words() gives them). Throws DataError if one
  /// occurs twice.
  explicit Vocabulary(std::vector<std::string> words);

  /// How many words it has, "<unk>" included.
  int64_t size() const { return static_cast<int64_t>(words_.size()); }
  /// The word's number; 0: it is not in the vocabulary.
  int32_t id(std::string_view word) const;
  /// The words by number, "<unk>" first.
  std::span<const std::string> words() const { return words_; }

 private:
  void index_words();

  std::vector<std::string> words_;
  std::unordered_map<std::string_view, int32_t> ids_;  // views into words_

 public:
  Vocabulary(Vocabulary&&) = default;  // moving a vector keeps its strings where they are
  Vocabulary& operator=(Vocabulary&&) = default;
  Vocabulary(const Vocabulary&) = delete;
  Vocabulary& operator=(const Vocabulary&) = delete;
};

}  // namespace demi::data
