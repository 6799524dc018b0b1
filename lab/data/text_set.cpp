#include "lab/data/text_set.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <fmt/format.h>

#include <algorithm>
#include <deque>
#include <unordered_map>
#include <utility>

#include "demi/core/error.h"
#include "lab/data/tokenizer.h"
#include "lab/files/damage.h"

namespace demi::data {
namespace {

/// The texts of one range of sources, as numbers of words in the order of their first use.
struct Chunk {
  std::deque<std::string> words;  // a deque never moves what it holds
  std::vector<int64_t> counts;
  std::unordered_map<std::string_view, int32_t> ids;
  std::vector<int32_t> tokens;
  std::vector<int64_t> lengths;

  void add(std::string_view word) {
    auto found = ids.find(word);
    if (found == ids.end()) {
      words.emplace_back(word);
      counts.push_back(0);
      found = ids.emplace(words.back(), static_cast<int32_t>(ids.size())).first;
    }
    ++counts[static_cast<std::size_t>(found->second)];
    tokens.push_back(found->second);
  }
};

void add_text(Chunk& chunk, const TextSource& source, const BasicEnglish& tokenizer) {
  const std::string text = source.read();
  const std::size_t before = chunk.tokens.size();
  const std::size_t bad = tokenizer(text, [&](std::string_view word) { chunk.add(word); });
  if (bad != BasicEnglish::npos)
    files::report_damage(
        {.where = "data.tokenize",
         .file = source.place,
         .what = "the text is not UTF-8",
         .place = fmt::format("offset {}", bad),
         .found = fmt::format("byte 0x{:02x}", static_cast<unsigned char>(text[bad])),
         .expected = "UTF-8",
         .advice = "convert the text (iconv -t UTF-8), or get an undamaged copy"});
  chunk.lengths.push_back(static_cast<int64_t>(chunk.tokens.size() - before));
}

std::vector<Chunk> read_chunks(const std::vector<TextSource>& sources) {
  constexpr int64_t kTexts = 500;  // enough that merging costs little, few enough to share them out
  const auto total = static_cast<int64_t>(sources.size());
  std::vector<Chunk> chunks(static_cast<std::size_t>((total + kTexts - 1) / kTexts));
  const BasicEnglish tokenizer;
  at::parallel_for(0, static_cast<int64_t>(chunks.size()), 1, [&](int64_t begin, int64_t end) {
    for (int64_t c = begin; c < end; ++c)
      for (int64_t i = c * kTexts; i < std::min(total, (c + 1) * kTexts); ++i)
        add_text(chunks[static_cast<std::size_t>(c)], sources[static_cast<std::size_t>(i)],
                 tokenizer);
  });
  return chunks;
}

Vocabulary count_words(const std::vector<Chunk>& chunks) {
  std::unordered_map<std::string_view, int64_t> counts;
  for (const Chunk& chunk : chunks)
    for (std::size_t i = 0; i < chunk.words.size(); ++i) counts[chunk.words[i]] += chunk.counts[i];
  std::vector<WordCount> list;
  list.reserve(counts.size());
  for (const auto& [word, count] : counts) list.push_back({std::string(word), count});
  return Vocabulary(std::move(list));
}

TextSet number(const std::vector<Chunk>& chunks, const std::vector<TextSource>& sources,
               const Vocabulary& vocabulary, std::string name) {
  std::vector<int32_t> tokens;
  std::vector<int64_t> offsets{0}, labels;
  for (const TextSource& source : sources) labels.push_back(source.label);
  for (const Chunk& chunk : chunks) {
    std::vector<int32_t> ids;
    for (const std::string& word : chunk.words) ids.push_back(vocabulary.id(word));
    auto next = chunk.tokens.begin();
    for (int64_t length : chunk.lengths) {
      if (length == 0) tokens.push_back(0);
      for (const auto end = next + length; next != end; ++next)
        tokens.push_back(ids[static_cast<std::size_t>(*next)]);
      offsets.push_back(static_cast<int64_t>(tokens.size()));
    }
  }
  return {.tokens = at::tensor(tokens, at::kInt),
          .offsets = at::tensor(offsets, at::kLong),
          .labels = at::tensor(labels, at::kLong),
          .name = std::move(name)};
}

}  // namespace

TextCorpus tokenize(const std::vector<TextSource>& train, const std::vector<TextSource>& test,
                    std::vector<std::string> classes, const std::string& name) {
  const std::vector<Chunk> train_chunks = read_chunks(train);
  auto vocabulary = std::make_shared<const Vocabulary>(count_words(train_chunks));
  return {.train = number(train_chunks, train, *vocabulary, name + " train"),
          .test = number(read_chunks(test), test, *vocabulary, name + " test"),
          .classes = std::move(classes),
          .vocabulary = vocabulary};
}

TextSet tokenize(const std::vector<TextSource>& texts, const Vocabulary& vocabulary,
                 std::string name) {
  return number(read_chunks(texts), texts, vocabulary, std::move(name));
}

TextSet renumbered(TextSet texts, const Vocabulary& from, const Vocabulary& to) {
  at::Tensor ids = at::empty({from.size()}, at::kInt);
  int32_t* id = ids.mutable_data_ptr<int32_t>();
  for (const std::string& word : from.words()) *id++ = to.id(word);
  texts.tokens = ids.index_select(0, texts.tokens);
  return texts;
}

bool has_all_words(const Vocabulary& from, const Vocabulary& to) {
  return std::ranges::all_of(to.words().subspan(1),
                             [&](const std::string& word) { return from.id(word) != 0; });
}

double unknown_share(const TextSet& texts) {
  const int64_t all = texts.tokens.numel();
  if (all == 0) return 0;
  return static_cast<double>(texts.tokens.eq(0).sum().item<int64_t>()) / static_cast<double>(all);
}

}  // namespace demi::data
