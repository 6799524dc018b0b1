#include "lab/data/tokenizer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include "demi/core/source_dir_testing.h"

namespace demi::data {
namespace {

using Words = std::vector<std::string>;

Words words(std::string_view text) {
  Words found;
  EXPECT_EQ(BasicEnglish()(text, [&](std::string_view word) { found.emplace_back(word); }),
            BasicEnglish::npos);
  return found;
}

std::size_t bad(std::string_view text) {
  return BasicEnglish()(text, [](std::string_view) {});
}

// Expected: torchtext 0.18's basic_english, whose regular expressions were run in Python on the
// same texts.
TEST(BasicEnglish, SplitsAsTheFieldDoes) {
  EXPECT_EQ(words("You can now INSTALL it!"), (Words{"you", "can", "now", "install", "it", "!"}));
  EXPECT_EQ(words("don't (really), eh?"),
            (Words{"don", "'", "t", "(", "really", ")", ",", "eh", "?"}));
  EXPECT_EQ(words("a<br /><br />b;c:d e.f"), (Words{"a", "b", "c", "d", "e", ".", "f"}));
  EXPECT_EQ(words("\"say \"\"so\"\", he\""), (Words{"say", "so", ",", "he"}));
  EXPECT_EQ(words("x<BR />y <br/> z<br"), (Words{"x", "y", "<br/>", "z<br"}));
  EXPECT_EQ(words("10/10 -- well-made..."), (Words{"10/10", "--", "well-made", ".", ".", "."}));
}

TEST(BasicEnglish, RemovesQuotesBeforeItLooksForBreaks) {
  EXPECT_EQ(words("a<b\"r />b"), (Words{"a", "b"}));
}

TEST(BasicEnglish, TakesAPlainSpaceOnlyInABreak) {
  EXPECT_EQ(words("a<br\t/>b"), (Words{"a<br", "/>b"}));
}

TEST(BasicEnglish, KnowsUnicodesLettersAndSpaces) {
  EXPECT_EQ(words("\u00c9T\u00c9 \u00d8\u00c5 \u0416\u03a9"),
            (Words{"\u00e9t\u00e9", "\u00f8\u00e5", "\u0436\u03c9"}));
  EXPECT_EQ(words("a\u00a0b\u0085c\u2003d\u3000e\x1f"
                  "f\tg\r\nh"),
            (Words{"a", "b", "c", "d", "e", "f", "g", "h"}));
  EXPECT_EQ(words("\U0001F600!"), (Words{"\U0001F600", "!"}));
}

std::string from_hex(const std::string& digits) {
  std::string bytes;
  for (std::size_t i = 0; i < digits.size(); i += 2)
    bytes.push_back(static_cast<char>(std::stoi(digits.substr(i, 2), nullptr, 16)));
  return bytes;
}

// Lower case depends on what is around a letter: tests/fixtures/tokens/make.py asked Python.
TEST(BasicEnglish, LowersSigmaAndIAsPython) {
  std::ifstream file(source_dir() / "tests/fixtures/tokens/tokens.txt");
  int texts = 0;
  for (std::string line; std::getline(file, line); ++texts) {
    std::istringstream parts(line);
    std::string text, token;
    parts >> text;
    Words expected;
    while (parts >> token) expected.push_back(from_hex(token));
    EXPECT_EQ(words(from_hex(text)), expected) << from_hex(text);
  }
  EXPECT_EQ(texts, 212);
}

TEST(BasicEnglish, GivesNothingForNothing) {
  EXPECT_EQ(words(""), Words());
  EXPECT_EQ(words(" \n;:\"<br />"), Words());
}

TEST(BasicEnglish, SaysWhereTheTextIsNotUtf8) {
  EXPECT_EQ(bad("abc\xff"), 3U);
  EXPECT_EQ(bad("ab\xc3"), 2U);            // cut short
  EXPECT_EQ(bad("\xc0\xaf"), 0U);          // overlong
  EXPECT_EQ(bad("\xe0\x80\xaf"), 0U);      // overlong
  EXPECT_EQ(bad("x\xed\xa0\x80"), 1U);     // a surrogate
  EXPECT_EQ(bad("\xf4\x90\x80\x80"), 0U);  // above U+10FFFF
  EXPECT_EQ(bad("\xf5\x80\x80\x80"), 0U);
  EXPECT_EQ(bad("\x80"), 0U);
  EXPECT_EQ(bad(std::string_view("a\0b", 3)), BasicEnglish::npos);
}

}  // namespace
}  // namespace demi::data
