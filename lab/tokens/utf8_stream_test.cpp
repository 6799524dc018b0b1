#include "lab/tokens/utf8_stream.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace demi::tokens {
namespace {

std::string by_pieces(const std::string& text, std::size_t piece) {
  Utf8Stream stream;
  std::string all;
  for (std::size_t at = 0; at < text.size(); at += piece)
    all += stream.add(std::string_view(text).substr(at, piece));
  return all + stream.finish();
}

TEST(Utf8Stream, GivesWholeCharacters) {
  Utf8Stream stream;
  EXPECT_EQ(stream.add("a\xC3"), "a");
  EXPECT_EQ(stream.add("\xA9"
                       "b"),
            "\u00e9b");
  EXPECT_EQ(stream.add("\xF0\x9F"), "");
  EXPECT_EQ(stream.add("\x98"), "");
  EXPECT_EQ(stream.add("\x80\xE2"), "\U0001F600");
  EXPECT_EQ(stream.finish(), "\uFFFD") << "the text ends within a character";
  EXPECT_EQ(stream.finish(), "");
  EXPECT_EQ(stream.add("x"), "x");
}

// Inputs and results are those of The Unicode Standard 15, tables 3-8 to 3-11.
TEST(Utf8Stream, ReplacesWhatIsNoUtf8AsUnicodeSays) {
  const std::string r = "\uFFFD";
  const auto times = [&](int n) {
    std::string all;
    for (int i = 0; i < n; ++i) all += r;
    return all;
  };
  const std::vector<std::pair<std::string, std::string>> cases{
      {"\xC0\xAF\xE0\x80\xBF\xF0\x81\x82"
       "A",
       times(8) + "A"},
      {"\xED\xA0\x80\xED\xBF\xBF\xED\xAF"
       "A",
       times(8) + "A"},
      {"\xF4\x91\x92\x93\xFF"
       "A\x80\xBF"
       "B",
       times(5) + "A" + times(2) + "B"},
      {"\xE1\x80\xE2\xF0\x91\x92\xF1\xBF"
       "A",
       times(4) + "A"},
      {"caf\u00e9 \u4e2d\U0001F600", "caf\u00e9 \u4e2d\U0001F600"}};
  for (const auto& [bytes, want] : cases)
    for (std::size_t piece = 1; piece <= 5; ++piece) EXPECT_EQ(by_pieces(bytes, piece), want);
}

}  // namespace
}  // namespace demi::tokens
