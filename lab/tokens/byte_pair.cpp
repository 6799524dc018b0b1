#include "lab/tokens/byte_pair.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <limits>
#include <unordered_map>

#include "demi/core/error.h"
#include "lab/tokens/pre_tokens.h"
#include "lab/tokens/require_token.h"
#include "lab/utf8.h"

namespace demi::tokens {
namespace {

/// Bytes that are printable in Latin-1 stand for themselves, the others for U+0100 on, in order.
std::array<int32_t, 256> codes_of_bytes() {
  std::array<int32_t, 256> codes{};
  int32_t next = 0x100;
  for (int32_t byte = 0; byte < 256; ++byte) {
    const bool printable = (byte >= 0x21 && byte <= 0x7E) || (byte >= 0xA1 && byte != 0xAD);
    codes[static_cast<std::size_t>(byte)] = printable ? byte : next++;
  }
  return codes;
}

std::string utf8_of(int32_t code) {  // of codes below U+0800
  if (code < 0x80) return {static_cast<char>(code)};
  return {static_cast<char>(0xC0 | (code >> 6)), static_cast<char>(0x80 | (code & 0x3F))};
}

[[noreturn]] void refuse_pairs(const std::string& what, const std::string& seen,
                               const std::string& accepted) {
  refuse<DataError>({.where = "tokens.byte_pair_tokenizer",
                     .what = what,
                     .seen = seen,
                     .accepted = accepted,
                     .advice = "get vocabulary and merges of the same tokenizer"});
}

class BytePair : public Tokenizer {
 public:
  explicit BytePair(const BytePairs& pairs)
      : added_(those_of(pairs, false)),
        added_between_(those_of(pairs, true)),
        prefix_(pairs.prefix_blank) {
    std::unordered_map<std::string, int32_t> numbers;
    for (std::size_t token = 0; token < pairs.symbols.size(); ++token)
      if (!numbers.emplace(pairs.symbols[token], static_cast<int32_t>(token)).second)
        refuse_pairs("two tokens are the same", pairs.symbols[token], "distinct ones");
    const auto number_of = [&](const std::string& symbol, const std::string& role) {
      const auto found = numbers.find(symbol);
      if (found == numbers.end()) refuse_pairs(role + " is no token", symbol, "a token");
      return found->second;
    };
    for (int32_t byte = 0; byte < 256; ++byte)
      of_byte_[static_cast<std::size_t>(byte)] =
          number_of(byte_symbol(static_cast<unsigned char>(byte)), fmt::format("byte {}", byte));
    for (std::size_t rank = 0; rank < pairs.merges.size(); ++rank) {
      const auto& [left, right] = pairs.merges[rank];
      const int32_t a = number_of(left, "a merge's part"), b = number_of(right, "a merge's part");
      merges_.emplace(key(a, b), Merge{static_cast<int32_t>(rank),
                                       number_of(left + right, "a merge's result")});
    }
    spell(pairs.symbols);
    spell_added(pairs.added, numbers);
    texts_ = texts_of(pairs);
  }

  std::string_view name() const override { return "bpe"; }
  TokenizerTexts texts() const override { return texts_; }
  int64_t size() const override { return static_cast<int64_t>(spelling_.size()); }

  std::vector<int32_t> encode(std::string_view text) const override {
    if (const std::size_t at = lab::first_not_utf8(text); at != std::string_view::npos)
      refuse_not_utf8(at);
    std::vector<int32_t> tokens;
    for_each_between(added_, text, tokens, [&](std::string_view part) {
      for_each_between(added_between_, part, tokens,
                       [&](std::string_view plain) { encode_plain(plain, tokens); });
    });
    return tokens;
  }

  std::string decode(std::span<const int32_t> tokens) const override {
    std::string text;
    for (const int32_t token : tokens) {
      require_token(token, size());
      text += spelling_[static_cast<std::size_t>(token)];
    }
    return text;
  }

 private:
  struct Merge {
    int32_t rank = std::numeric_limits<int32_t>::max(), token = -1;
  };

  static uint64_t key(int32_t left, int32_t right) {
    return static_cast<uint64_t>(static_cast<uint32_t>(left)) << 32 | static_cast<uint32_t>(right);
  }

  /// The bytes of each token. An added one that is no symbol by bytes is its own text.
  void spell(const std::vector<std::string>& symbols) {
    std::unordered_map<int32_t, char> byte_of;
    const auto codes = codes_of_bytes();
    for (std::size_t byte = 0; byte < 256; ++byte)
      byte_of.emplace(codes[byte], static_cast<char>(byte));
    for (const std::string& symbol : symbols) {
      std::string& bytes = spelling_.emplace_back();
      int32_t code = 0;
      for (std::size_t at = 0, taken = 0; at < symbol.size(); at += taken) {
        taken = lab::next_code(symbol, at, code);
        const auto found = taken ? byte_of.find(code) : byte_of.end();
        if (found == byte_of.end()) {
          bytes = symbol;
          break;
        }
        bytes += found->second;
      }
    }
  }

  void spell_added(std::vector<AddedToken> added,
                   const std::unordered_map<std::string, int32_t>& numbers) {
    const auto symbols = static_cast<int32_t>(numbers.size());
    std::unordered_map<std::string, int32_t> known;
    std::ranges::stable_sort(added, {}, &AddedToken::token);
    for (const AddedToken& one : added) {
      const auto symbol = numbers.find(one.text);
      if (one.token < symbols || symbol != numbers.end()) {
        if (symbol == numbers.end() || symbol->second != one.token)
          refuse_pairs("an added token has not the number of its symbol",
                       fmt::format("{}: {}", one.text, one.token),
                       symbol == numbers.end() ? fmt::format("{} or more", symbols)
                                               : std::to_string(symbol->second));
      }
      if (one.token > size())
        refuse_pairs("an added token has a number beyond the others", std::to_string(one.token),
                     fmt::format("0 to {}", size()));
      const auto [before, is_new] = known.emplace(one.text, one.token);
      const bool is_taken = one.token >= symbols && one.token < size();
      if (is_new ? is_taken : before->second != one.token)
        refuse_pairs("two added tokens share a text or a number", one.text, "a number each");
      if (one.token == size()) spelling_.emplace_back();
      spelling_[static_cast<std::size_t>(one.token)] = one.text;
    }
  }

  static AddedTokens those_of(const BytePairs& pairs, bool normalized) {
    std::vector<AddedToken> all = pairs.added;
    std::erase_if(all, [&](const AddedToken& one) { return one.normalized != normalized; });
    return AddedTokens(std::move(all));
  }

  /// Adds the tokens that are found, and calls each(text) with what lies before and between them.
  template <class Each>
  static void for_each_between(const AddedTokens& added, std::string_view text,
                               std::vector<int32_t>& tokens, const Each& each) {
    for (std::size_t at = 0; at < text.size();) {
      const auto [place, found] = added.next(text, at);
      each(text.substr(at, place - at));
      if (!found) break;
      tokens.push_back(found->token);
      at = place + found->text.size();
    }
  }

  void encode_plain(std::string_view text, std::vector<int32_t>& tokens) const {
    std::string longer;
    if (prefix_ && !text.empty() && text.front() != ' ') text = longer = ' ' + std::string(text);
    for_each_pre_token(text, [&](std::string_view word) { encode_word(word, tokens); });
  }

  /// Merges the pair that was learned first, everywhere from the left, until no pair was learned.
  void encode_word(std::string_view word, std::vector<int32_t>& tokens) const {
    std::vector<int32_t> parts;
    for (const char byte : word) parts.push_back(of_byte_[static_cast<unsigned char>(byte)]);
    while (parts.size() > 1) {
      Merge best;
      for (std::size_t i = 0; i + 1 < parts.size(); ++i) {
        const auto found = merges_.find(key(parts[i], parts[i + 1]));
        if (found != merges_.end() && found->second.rank < best.rank) best = found->second;
      }
      if (best.token < 0) break;
      merge_all(best, parts);
    }
    tokens.insert(tokens.end(), parts.begin(), parts.end());
  }

  void merge_all(const Merge& merge, std::vector<int32_t>& parts) const {
    std::size_t out = 0;
    for (std::size_t i = 0; i < parts.size(); ++i, ++out) {
      const bool is_pair = i + 1 < parts.size() && rank_of(parts[i], parts[i + 1]) == merge.rank;
      parts[out] = is_pair ? merge.token : parts[i];
      if (is_pair) ++i;
    }
    parts.resize(out);
  }

  int32_t rank_of(int32_t left, int32_t right) const {
    const auto found = merges_.find(key(left, right));
    return found == merges_.end() ? Merge().rank : found->second.rank;
  }

  TokenizerTexts texts_;
  std::vector<std::string> spelling_;  // bytes by token
  std::array<int32_t, 256> of_byte_{};
  std::unordered_map<uint64_t, Merge> merges_;
  AddedTokens added_, added_between_;  // the second ones in what the first ones leave
  bool prefix_;
};

}  // namespace

std::string byte_symbol(unsigned char byte) {
  static const auto codes = codes_of_bytes();
  return utf8_of(codes[byte]);
}

std::unique_ptr<Tokenizer> byte_pair_tokenizer(const BytePairs& pairs) {
  return std::make_unique<BytePair>(pairs);
}

}  // namespace demi::tokens
