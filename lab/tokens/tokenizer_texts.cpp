#include <nlohmann/json.hpp>
#include <set>

#include "demi/core/error.h"
#include "demi/core/json.h"
#include "demi/core/json_value.h"
#include "lab/tokens/byte_pair.h"
#include "lab/tokens/tokenizer.h"

namespace demi::tokens {
namespace {

using nlohmann::json;

constexpr auto kBytePairs = "bpe";
constexpr auto kMerges = "merges", kAdded = "added", kPrefixBlank = "prefix_blank";
// Numbers of added tokens. Older files have neither: all are special, and none is normalized.
constexpr auto kNotSpecial = "not_special", kNormalized = "normalized";

[[noreturn]] void refuse_texts(const std::string& what, const std::string& seen,
                               const std::string& accepted) {
  refuse<DataError>(
      {.where = "tokens.tokenizer_of", .what = what, .seen = seen, .accepted = accepted});
}

[[noreturn]] void refuse_damaged(const std::exception& error) {
  refuse_texts("vocabulary or merges are damaged", error.what(), "JSON of symbols and merges");
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
  json added = json::array();
  json merges{{kMerges, pairs.merges}, {kPrefixBlank, pairs.prefix_blank}};
  for (const AddedToken& one : pairs.added) {
    added.push_back(json::array({one.text, one.token}));
    if (!one.special) merges[kNotSpecial].push_back(one.token);
    if (one.normalized) merges[kNormalized].push_back(one.token);
  }
  merges[kAdded] = std::move(added);
  return {.name = kBytePairs, .vocabulary = json(pairs.symbols).dump(), .merges = merges.dump()};
}

BytePairs byte_pairs_of(const TokenizerTexts& texts) {
  try {
    BytePairs pairs;
    read_json(texts.vocabulary).get_to(pairs.symbols);
    const json merges = read_json(texts.merges);
    merges.at(kMerges).get_to(pairs.merges);
    const JsonValue all(merges);
    const auto not_special = all.value(kNotSpecial, std::set<int32_t>()),
               normalized = all.value(kNormalized, std::set<int32_t>());
    all.at(kAdded).each([&](const JsonValue<json>& one) {
      const auto token = one.at(1).get<int32_t>();
      pairs.added.push_back({.text = one.at(0).get<std::string>(),
                             .token = token,
                             .special = !not_special.contains(token),
                             .normalized = normalized.contains(token)});
    });
    pairs.prefix_blank = all.at(kPrefixBlank).get<bool>();
    return pairs;
  } catch (const json::exception& error) {
    refuse_damaged(error);
  } catch (const JsonError& error) {
    refuse_damaged(error);
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

namespace {

/// Whether they make the same numbers: what added tokens are besides, older files do not say.
bool same_merges(const std::string& one, const std::string& other) {
  if (one.empty() || other.empty() || one == other) return true;
  const auto numbering = [](const std::string& merges) {
    json all = json_or_null(merges);
    if (all.is_object()) {
      all.erase(kNotSpecial);
      all.erase(kNormalized);
    }
    return all;
  };
  const json a = numbering(one);
  return a.is_object() && a == numbering(other);
}

}  // namespace

bool agree(const TokenizerTexts& one, const TokenizerTexts& other) {
  const bool same_vocabulary =
      one.vocabulary.empty() || other.vocabulary.empty() || one.vocabulary == other.vocabulary;
  return one.name == other.name && same_vocabulary && same_merges(one.merges, other.merges);
}

}  // namespace demi::tokens
