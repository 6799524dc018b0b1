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

Json token_json(const tokens::AddedToken& one) {
  return {{"content", one.text}, {"single_word", false},         {"lstrip", false},
          {"rstrip", false},     {"normalized", one.normalized}, {"special", one.special}};
}

Json added_json(const BytePairs& pairs) {
  Json added = Json::array();
  for (const tokens::AddedToken& one : pairs.added) {
    added.push_back({{"id", one.token}});
    added.back().update(token_json(one));
  }
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

/// tokenizer_config.json. Without it transformers takes the class of the model's type: Llama's
/// makes other tokens of blanks. The class named here reads tokenizer.json unchanged.
Json config_json(const BytePairs& pairs, bool has_end, int64_t context) {
  Json config{{"tokenizer_class", "PreTrainedTokenizerFast"},
              {"add_prefix_space", pairs.prefix_blank},
              {"clean_up_tokenization_spaces", false},
              {"model_max_length", context}};
  for (const tokens::AddedToken& one : pairs.added)
    config["added_tokens_decoder"][std::to_string(one.token)] = token_json(one);
  if (has_end) config["bos_token"] = config["eos_token"] = kEnd;
  return config;
}

std::string merges_text(const BytePairs& pairs) {
  std::string text = "#version: 0.2\n";
  for (const auto& [first, second] : pairs.merges)
    text.append(first).append(" ").append(second).append("\n");
  return text;
}

}  // namespace

std::vector<std::string> write_tokenizer(const std::filesystem::path& folder,
                                         const tokens::TokenizerTexts& tokenizer, int64_t context) {
  if (!has_pairs(tokenizer)) return {};
  const BytePairs pairs = tokens::byte_pairs_of(tokenizer);
  write_atomically(folder / "tokenizer.json", tokenizer_json(pairs).dump(2) + "\n");
  write_atomically(folder / "vocab.json", vocabulary_json(pairs).dump() + "\n");
  write_atomically(folder / "merges.txt", merges_text(pairs));
  const bool has_end = end_of_text(tokenizer) >= 0;
  write_atomically(folder / "tokenizer_config.json",
                   config_json(pairs, has_end, context).dump(2) + "\n");
  return {"tokenizer.json", "tokenizer_config.json", "vocab.json", "merges.txt"};
}

int64_t end_of_text(const tokens::TokenizerTexts& tokenizer) {
  if (!has_pairs(tokenizer)) return -1;
  const BytePairs pairs = tokens::byte_pairs_of(tokenizer);
  for (const tokens::AddedToken& one : pairs.added)
    if (one.text == kEnd) return one.token;
  for (std::size_t i = 0; i < pairs.symbols.size(); ++i)
    if (pairs.symbols[i] == kEnd) return static_cast<int64_t>(i);
  return -1;
}

}  // namespace demi::huggingface
