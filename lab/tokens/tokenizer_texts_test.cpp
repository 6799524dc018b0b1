#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "demi/core/error.h"
#include "lab/tokens/byte_pair.h"
#include "lab/tokens/tokenizer.h"

namespace demi::tokens {
namespace {

using ::testing::HasSubstr;

/// All bytes, two merges, an added token beyond the symbols and one whose text holds blanks.
BytePairs some_pairs() {
  BytePairs pairs{.merges = {{"a", "b"}, {byte_symbol(' '), "ab"}}, .prefix_blank = true};
  for (int byte = 0; byte < 256; ++byte)
    pairs.symbols.push_back(byte_symbol(static_cast<unsigned char>(byte)));
  pairs.symbols.insert(pairs.symbols.end(), {"ab", byte_symbol(' ') + "ab", "<a \"b\" c>"});
  pairs.added = {{"<a \"b\" c>", 258}, {"<|end|>", 259}};
  return pairs;
}

TEST(TokenizerTexts, GiveTheTokenizerBack) {
  const std::string text = "ab ab<|end|>\u00fc\n<a \"b\" c>b a";
  const auto pairs = byte_pair_tokenizer(some_pairs());
  const auto all = {characters_of(text)->texts(), bytes()->texts(), pairs->texts()};
  for (const TokenizerTexts& texts : all) {
    const auto made = tokenizer_of(texts);
    ASSERT_TRUE(made) << texts.name;
    EXPECT_EQ(made->name(), texts.name);
    EXPECT_EQ(made->texts(), texts);
    EXPECT_EQ(made->decode(made->encode("ab")), texts.name == "bpe" ? " ab" : "ab");
  }
  const auto again = tokenizer_of(pairs->texts());
  EXPECT_EQ(again->size(), 260);
  EXPECT_EQ(again->encode(text), pairs->encode(text));
  EXPECT_EQ(again->decode(again->encode(text)), pairs->decode(pairs->encode(text)));
}

TEST(TokenizerTexts, OfOlderFilesGiveNone) {
  EXPECT_EQ(tokenizer_of({}), nullptr);
  EXPECT_EQ(tokenizer_of({.name = "bpe"}), nullptr);
}

std::string complaint(const TokenizerTexts& texts) {
  try {
    tokenizer_of(texts);
  } catch (const DataError& error) {
    return error.what();
  }
  return "no DataError";
}

TEST(TokenizerTexts, RefuseWhatIsDamaged) {
  EXPECT_THAT(complaint({.name = "words"}), HasSubstr("words"));
  EXPECT_THAT(complaint({.name = "characters", .vocabulary = "ba"}), HasSubstr("not in order"));
  EXPECT_THAT(complaint({.name = "characters", .vocabulary = "aab"}), HasSubstr("not in order"));
  EXPECT_THAT(complaint({.name = "characters", .vocabulary = "a\xFF"}), HasSubstr("UTF-8"));
  EXPECT_THAT(complaint({.name = "characters"}), HasSubstr("too few"));
  const TokenizerTexts whole = byte_pair_tokenizer(some_pairs())->texts();
  const auto with = [&](const std::string& vocabulary, const std::string& merges) {
    return complaint({.name = "bpe", .vocabulary = vocabulary, .merges = merges});
  };
  EXPECT_THAT(with("", whole.merges), HasSubstr("damaged"));
  EXPECT_THAT(with("[1]", whole.merges), HasSubstr("damaged"));
  EXPECT_THAT(with("[\"a\"]", whole.merges), HasSubstr("byte 0 is no token"));
  EXPECT_THAT(with(whole.vocabulary, "{}"), HasSubstr("damaged"));
  EXPECT_THAT(with(whole.vocabulary, whole.merges.substr(1)), HasSubstr("damaged"));
}

TEST(TokenizerTexts, AgreeAsFarAsBothHaveThem) {
  const TokenizerTexts one{.name = "bpe", .vocabulary = "[]", .merges = "{}"};
  EXPECT_TRUE(agree(one, one));
  EXPECT_TRUE(agree(one, {.name = "bpe"}));
  EXPECT_FALSE(agree(one, {.name = "bytes"}));
  EXPECT_FALSE(agree(one, {.name = "bpe", .vocabulary = "[1]", .merges = "{}"}));
  EXPECT_FALSE(agree(one, {.name = "bpe", .vocabulary = "[]", .merges = "{1}"}));
}

}  // namespace
}  // namespace demi::tokens
