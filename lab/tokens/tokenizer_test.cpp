#include "lab/tokens/tokenizer.h"

#include <gmock/gmock.h>

#include "demi/core/error.h"

namespace demi::tokens {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

// nanoGPT's prepare.py: chars = sorted(list(set(data))); the number is the place in it.
TEST(Characters, AreNumberedByCodePoint) {
  const auto tokenizer = characters_of("béa\n中b");
  EXPECT_EQ(tokenizer->size(), 5);
  EXPECT_THAT(tokenizer->encode("\nabé中"), ElementsAre(0, 1, 2, 3, 4));
  EXPECT_EQ(tokenizer->decode(tokenizer->encode("中éba\n")), "中éba\n");
  EXPECT_THAT(tokenizer->encode(""), ElementsAre());
}

TEST(Characters, RefuseWhatTheyDoNotKnow) {
  const auto tokenizer = characters_of("ab");
  EXPECT_THAT([&] { tokenizer->encode("abäb"); }, ThrowsMessage<DataError>(HasSubstr("at byte 2")));
  EXPECT_THAT([&] { tokenizer->encode("abäb"); },
              ThrowsMessage<DataError>(HasSubstr("ä (U+00E4); accepted: its 2 characters: ab")));
  EXPECT_THAT([&] { tokenizer->encode("ab\xff"); },
              ThrowsMessage<DataError>(HasSubstr("not UTF-8 at byte 2")));
  const std::vector<int32_t> none{2}, negative{-1};
  EXPECT_THAT([&] { tokenizer->decode(none); },
              ThrowsMessage<UsageError>(HasSubstr("seen: 2; accepted: 0 to 1")));
  EXPECT_THROW(tokenizer->decode(negative), UsageError);
}

TEST(Characters, WantTwoOfThem) {
  for (const char* text : {"", "a", "aaaa"})
    EXPECT_THAT([&] { characters_of(text); },
                ThrowsMessage<DataError>(HasSubstr("too few distinct characters")))
        << text;
  EXPECT_THAT([] { characters_of("ab\xc3"); }, ThrowsMessage<DataError>(HasSubstr("at byte 2")));
}

TEST(Bytes, AreTheirOwnNumbers) {
  const auto tokenizer = bytes();
  EXPECT_EQ(tokenizer->size(), 256);
  const std::string text{
      "\0\xff"
      "a",
      3};
  EXPECT_THAT(tokenizer->encode(text), ElementsAre(0, 255, 97));
  EXPECT_EQ(tokenizer->decode(tokenizer->encode(text)), text);
  const std::vector<int32_t> none{256};
  EXPECT_THROW(tokenizer->decode(none), UsageError);
}

}  // namespace
}  // namespace demi::tokens
