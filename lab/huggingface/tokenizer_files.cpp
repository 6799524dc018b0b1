#include "lab/huggingface/tokenizer_files.h"

#include <nlohmann/json.hpp>

#include "demi/core/atomic_file.h"
#include "lab/tokens/byte_pair.h"

namespace demi::huggingface {
namespace {

using Json = nlohmann::ordered_json;
using tokens::BytePairs;

constexpr auto kEnd = "<|endoftext|>";

bool has_pairs(const tokens::TokenizerTexts& texts) { return !texts.merges.empty(); }

Json vocabulary_json(const BytePairs& pairs) {
  Json vocabulary = Json::object();
  for (std::size_t i = 0; i < pairs.symbols.size(); ++i) vocabulary[pairs.symbols[i]] = i;
  return vocabulary;
}

Json added_json(const BytePairs& pairs) {
  Json added = Json::array();
  for (const auto& [text, number] : pairs.added)
    added.push_back({{"id", number},
                     {"content", text},
                     {"single_word", false},
                     {"lstrip", false},
                     {"rstrip", false},
                     {"normalized", false},
                     {"special", true}});
  return added;
}

Json byte_level(const BytePairs& pairs) {
  return {{"type", "ByteLevel"},
          {"add_prefix_space", pairs.prefix_blank},
          {"trim_offsets", true},
          {"use_regex", true}};
}

Json tokenizer_json(const BytePairs& pairs) {
  return {{"version", "1.0"},
          {"truncation", nullptr},
          {"padding", nullptr},
          {"added_tokens", added_json(pairs)},
          {"normalizer", nullptr},
          {"pre_tokenizer", byte_level(pairs)},
          {"post_processor", byte_level(pairs)},
          {"decoder", byte_level(pairs)},
          {"model",
           {{"type", "BPE"},
            {"dropout", nullptr},
            {"unk_token", nullptr},
            {"continuing_subword_prefix", nullptr},
            {"end_of_word_suffix", nullptr},
            {"fuse_unk", false},
            {"byte_fallback", false},
            {"ignore_merges", false},
            {"vocab", vocabulary_json(pairs)},
            {"merges", pairs.merges}}}};
}

std::string merges_text(const BytePairs& pairs) {
  std::string text = "#version: 0.2\n";
  for (const auto& [first, second] : pairs.merges)
    text.append(first).append(" ").append(second).append("\n");
  return text;
}

}  // namespace

std::vector<std::string> write_tokenizer(const std::filesystem::path& folder,
                                         const tokens::TokenizerTexts& tokenizer) {
  if (!has_pairs(tokenizer)) return {};
  const BytePairs pairs = tokens::byte_pairs_of(tokenizer);
  write_atomically(folder / "tokenizer.json", tokenizer_json(pairs).dump(2) + "\n");
  write_atomically(folder / "vocab.json", vocabulary_json(pairs).dump() + "\n");
  write_atomically(folder / "merges.txt", merges_text(pairs));
  return {"tokenizer.json", "vocab.json", "merges.txt"};
}

int64_t end_of_text(const tokens::TokenizerTexts& tokenizer) {
  if (!has_pairs(tokenizer)) return -1;
  const BytePairs pairs = tokens::byte_pairs_of(tokenizer);
  for (const auto& [text, number] : pairs.added)
    if (text == kEnd) return number;
  for (std::size_t i = 0; i < pairs.symbols.size(); ++i)
    if (pairs.symbols[i] == kEnd) return static_cast<int64_t>(i);
  return -1;
}

}  // namespace demi::huggingface
