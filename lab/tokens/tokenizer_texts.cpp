#include <nlohmann/json.hpp>

#include "demi/core/error.h"
#include "lab/tokens/byte_pair.h"
#include "lab/tokens/tokenizer.h"

namespace demi::tokens {
namespace {

using nlohmann::json;

constexpr auto kBytePairs = "bpe";
constexpr auto kMerges = "merges", kAdded = "added", kPrefixBlank = "prefix_blank";

[[noreturn]] void refuse_texts(const std::string& what, const std::string& seen,
                               const std::string& accepted) {
  refuse<DataError>(
      {.where = "tokens.tokenizer_of", .what = what, .seen = seen, .accepted = accepted});
}

std::unique_ptr<Tokenizer> characters_in_order(const std::string& vocabulary) {
  auto made = characters_of(vocabulary);
  if (made->texts().vocabulary != vocabulary)
    refuse_texts("the characters are not in order", json(vocabulary).dump(),
                 json(made->texts().vocabulary).dump());
  return made;
}

}  // namespace

TokenizerTexts texts_of(const BytePairs& pairs) {
  return {
      .name = kBytePairs,
      .vocabulary = json(pairs.symbols).dump(),
      .merges =
          json{{kMerges, pairs.merges}, {kAdded, pairs.added}, {kPrefixBlank, pairs.prefix_blank}}
              .dump()};
}

BytePairs byte_pairs_of(const TokenizerTexts& texts) {
  try {
    BytePairs pairs;
    json::parse(texts.vocabulary).get_to(pairs.symbols);
    const json merges = json::parse(texts.merges);
    merges.at(kMerges).get_to(pairs.merges);
    merges.at(kAdded).get_to(pairs.added);
    merges.at(kPrefixBlank).get_to(pairs.prefix_blank);
    return pairs;
  } catch (const json::exception& error) {
    refuse_texts("vocabulary or merges are damaged", error.what(), "JSON of symbols and merges");
  }
}

std::unique_ptr<Tokenizer> tokenizer_of(const TokenizerTexts& texts) {
  if (texts.name.empty()) return nullptr;
  if (texts.name == "characters") return characters_in_order(texts.vocabulary);
  if (texts.name == "bytes") return bytes();
  if (texts.name != kBytePairs)
    refuse_texts("this demi does not know the tokenizer", texts.name, "characters, bytes, bpe");
  if (texts.merges.empty()) return nullptr;
  return byte_pair_tokenizer(byte_pairs_of(texts));
}

bool agree(const TokenizerTexts& one, const TokenizerTexts& other) {
  const auto same = [](const std::string& a, const std::string& b) {
    return a.empty() || b.empty() || a == b;
  };
  return one.name == other.name && same(one.vocabulary, other.vocabulary) &&
         same(one.merges, other.merges);
}

}  // namespace demi::tokens
