#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "demi/core/folder_testing.h"
#include "demi/core/fuzz_target_testing.h"
#include "demi/core/memory_file_testing.h"
#include "lab/tokens/byte_pair.h"
#include "lab/tokens/token_files.h"
#include "lab/tokens/tokenizer.h"

namespace demi::tokens {

/// Makes tokens of a text and the text of them.
inline void use(const Tokenizer* tokenizer) {
  if (tokenizer) tokenizer->decode(tokenizer->encode("the cat\n <|endoftext|>\xC3\xA9"));
}

/// The bytes as symbols, and two longer ones.
inline BytePairs few_pairs() {
  BytePairs pairs;
  for (int byte = 0; byte < 256; ++byte)
    pairs.symbols.push_back(byte_symbol(static_cast<unsigned char>(byte)));
  pairs.symbols.insert(pairs.symbols.end(), {"th", "the"});
  pairs.merges = {{"t", "h"}, {"th", "e"}};
  return pairs;
}

/// A folder of vocab.json and merges.txt, with one file more or another one.
inline void fuzz_beside(const char* name, std::string_view bytes) {
  static const std::string vocabulary = [] {
    std::string text;
    int number = 0;
    for (std::string symbol : few_pairs().symbols) {
      if (symbol == "\"" || symbol == "\\") symbol.insert(0, "\\");
      text += (text.empty() ? "{\"" : ", \"") + symbol + "\": " + std::to_string(number++);
    }
    return text + "}";
  }();
  static const TestFolder folder;
  folder.write("vocab.json", vocabulary);
  folder.write("merges.txt", "#version: 0.2\nt h\nth e\n");
  folder.write(name, bytes);
  struct Removed {
    std::filesystem::path file;
    ~Removed() { std::filesystem::remove(file); }
  } const removed{folder.path() / name};
  use(byte_pair_tokenizer(read_byte_pairs(folder.path() / "vocab.json")).get());
}

/// Reads a model file's texts of its tokenizer.
inline void fuzz_texts(std::string_view bytes) {
  TokenizerTexts texts = texts_of(few_pairs());
  texts.merges = std::string(bytes);
  use(tokenizer_of(texts).get());
}

inline void fuzz_tokens(const std::filesystem::path& file) {
  const std::unique_ptr<TokenSource> source = open_token_files(file.string(), 50257);
  std::vector<int64_t> tokens(static_cast<std::size_t>(source->size()));
  source->copy(0, source->size(), tokens.data());
}

/// Megatron's index of a file of 90 tokens.
inline void fuzz_megatron(std::string_view bytes) {
  static const TestFolder folder;
  folder.write("x.bin", std::string(180, '\1'));
  folder.write("x.idx", bytes);
  fuzz_tokens(folder.path() / "x.bin");
}

inline constexpr FuzzTarget kFuzzTargets[] = {
    {"tokenizer_json",
     [](std::string_view bytes) {
       use(byte_pair_tokenizer(read_byte_pairs(MemoryFile(bytes).path())).get());
     }},
    {"vocab_json", [](std::string_view bytes) { fuzz_beside("vocab.json", bytes); }},
    {"merges_txt", [](std::string_view bytes) { fuzz_beside("merges.txt", bytes); }},
    {"tokenizer_config",
     [](std::string_view bytes) { fuzz_beside("tokenizer_config.json", bytes); }},
    {"special_tokens_map",
     [](std::string_view bytes) { fuzz_beside("special_tokens_map.json", bytes); }},
    {"added_tokens", [](std::string_view bytes) { fuzz_beside("added_tokens.json", bytes); }},
    {"tokenizer_texts", fuzz_texts},
    {"token_file", [](std::string_view bytes) { fuzz_tokens(MemoryFile(bytes).path()); }},
    {"megatron_index", fuzz_megatron}};

}  // namespace demi::tokens
