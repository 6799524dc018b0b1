#include "lab/data/vocabulary.h"

#include <algorithm>
#include <utility>

#include "demi/core/error.h"

namespace demi::data {

Vocabulary::Vocabulary(std::vector<WordCount> counts) {
  std::ranges::sort(counts, [](const WordCount& a, const WordCount& b) {
    return a.count != b.count ? a.count > b.count : a.word < b.word;
  });
  words_.reserve(counts.size() + 1);
  words_.emplace_back("<unk>");
  for (WordCount& entry : counts)
    if (entry.word != words_[0]) words_.push_back(std::move(entry.word));
  index_words();
}

Vocabulary::Vocabulary(std::vector<std::string> words) : words_(std::move(words)) {
  if (words_.empty() || words_[0] != "<unk>")
    throw DataError({.where = "data.Vocabulary", .what = "a vocabulary begins with <unk>"});
  index_words();
}

void Vocabulary::index_words() {
  ids_.reserve(words_.size());
  for (std::size_t i = 0; i < words_.size(); ++i)
    if (!ids_.emplace(words_[i], static_cast<int32_t>(i)).second)
      throw DataError(
          {.where = "data.Vocabulary", .what = "a word occurs twice", .seen = words_[i]});
}

int32_t Vocabulary::id(std::string_view word) const {
  const auto found = ids_.find(word);
  return found == ids_.end() ? 0 : found->second;
}

}  // namespace demi::data
