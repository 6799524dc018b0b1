#include <fmt/format.h>

#include <map>
#include <set>

#include "demi/core/error.h"
#include "lab/tokens/require_token.h"
#include "lab/tokens/tokenizer.h"
#include "lab/utf8.h"

namespace demi::tokens {
namespace {

constexpr std::string_view kCharacters = "characters", kBytes = "bytes";

/// Calls each(code point, its bytes).
template <class Each>
void for_each_character(std::string_view text, const Each& each) {
  int32_t code = 0;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t taken = lab::next_code(text, at, code);
    if (taken == 0) refuse_not_utf8(at);
    each(code, text.substr(at, taken), at);
    at += taken;
  }
}

class Characters : public Tokenizer {
 public:
  explicit Characters(std::string_view text) {
    std::set<std::pair<int32_t, std::string>> distinct;
    for_each_character(text, [&](int32_t code, std::string_view character, std::size_t) {
      distinct.emplace(code, character);
    });
    require<DataError>(distinct.size() >= 2,
                       {.where = "tokens.characters_of",
                        .what = "the text has too few distinct characters to learn from",
                        .seen = std::to_string(distinct.size()),
                        .accepted = "2 or more"});
    for (const auto& [code, character] : distinct) {
      numbers_.emplace(code, static_cast<int32_t>(characters_.size()));
      characters_.push_back(character);
    }
  }

  std::string_view name() const override { return kCharacters; }
  int64_t size() const override { return static_cast<int64_t>(characters_.size()); }

  TokenizerTexts texts() const override {
    std::string all;
    for (const std::string& each : characters_) all += each;
    return {.name = std::string(kCharacters), .vocabulary = std::move(all)};
  }

  std::vector<int32_t> encode(std::string_view text) const override {
    std::vector<int32_t> tokens;
    tokens.reserve(text.size());
    for_each_character(text, [&](int32_t code, std::string_view character, std::size_t at) {
      const auto found = numbers_.find(code);
      if (found == numbers_.end()) refuse_character(code, character, at);
      tokens.push_back(found->second);
    });
    return tokens;
  }

  std::string decode(std::span<const int32_t> tokens) const override {
    std::string text;
    for (const int32_t token : tokens) {
      require_token(token, size());
      text += characters_[static_cast<std::size_t>(token)];
    }
    return text;
  }

 private:
  [[noreturn]] void refuse_character(int32_t code, std::string_view character,
                                     std::size_t at) const {
    std::string known;
    for (const std::string& each : characters_)
      if (known.size() < 100 && static_cast<unsigned char>(each[0]) > ' ') known += each;
    refuse<DataError>(
        {.where = "tokens.encode",
         .what = fmt::format("a character at byte {} is none of the text that was "
                             "trained on",
                             at),
         .seen = fmt::format("{} (U+{:04X})", code < 0x20 ? std::string_view() : character, code),
         .accepted = fmt::format("its {} characters: {}", size(), known)});
  }

  std::vector<std::string> characters_;  // by number
  std::map<int32_t, int32_t> numbers_;   // of code points
};

class Bytes : public Tokenizer {
 public:
  std::string_view name() const override { return kBytes; }
  int64_t size() const override { return 256; }
  TokenizerTexts texts() const override { return {.name = std::string(kBytes)}; }

  std::vector<int32_t> encode(std::string_view text) const override {
    const auto* first = reinterpret_cast<const unsigned char*>(text.data());
    return {first, first + text.size()};
  }

  std::string decode(std::span<const int32_t> tokens) const override {
    std::string text;
    for (const int32_t token : tokens) {
      require_token(token, size());
      text += static_cast<char>(token);
    }
    return text;
  }
};

}  // namespace

void refuse_not_utf8(std::size_t at) {
  refuse<DataError>({.where = "tokens.encode",
                     .what = fmt::format("the text is not UTF-8 at byte {}", at),
                     .accepted = "UTF-8",
                     .advice = "convert it (iconv -t UTF-8), or take its bytes as tokens"});
}

void require_token(int32_t token, int64_t size) {
  if (token >= 0 && token < size) return;
  refuse({.where = "tokens.decode",
          .what = "no such token",
          .seen = std::to_string(token),
          .accepted = fmt::format("0 to {}", size - 1)});
}

std::unique_ptr<Tokenizer> characters_of(std::string_view text) {
  return std::make_unique<Characters>(text);
}

std::unique_ptr<Tokenizer> bytes() { return std::make_unique<Bytes>(); }

}  // namespace demi::tokens
