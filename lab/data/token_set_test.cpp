#include "lab/data/token_set.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <string>
#include <vector>

#include "demi/core/error.h"

namespace demi::data {
namespace {

using files::complaint;
namespace fs = std::filesystem;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

class TokenSets : public ::testing::Test {
 protected:
  void SetUp() override { fs::create_directories(folder_); }
  void TearDown() override { fs::remove_all(folder_); }

  std::string file(const std::string& name, const std::string& bytes) const {
    std::ofstream(folder_ / name, std::ios::binary) << bytes;
    return (folder_ / name).string();
  }

  const fs::path folder_ =
      fs::temp_directory_path() /
      fs::path(::testing::UnitTest::GetInstance()->current_test_info()->name());
};

std::vector<int64_t> all(const TokenSpan& span) {
  std::vector<int64_t> tokens(static_cast<std::size_t>(span.size));
  span.source->copy(span.first, span.size, tokens.data());
  return tokens;
}

template <class Call>
std::string complaint(const Call& call) {
  try {
    call();
  } catch (const DataError& error) {
    return error.what();
  }
  return "accepted";
}

TEST_F(TokenSets, ATextIsTestedOnItsLastTenth) {
  const TokenSet set =
      read_token_texts(file("t", std::string(90, 'b') + "aaaaabbbbbb"), "", "characters");
  EXPECT_EQ(set.vocabulary, 2);
  EXPECT_EQ(set.train.size, 90) << "int(101 * 0.9)";
  EXPECT_THAT(all(set.test), ElementsAre(0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1));
}

TEST_F(TokenSets, ASecondTextIsTestedOnWhole) {
  const std::string train = file("t", "abcabc");
  const TokenSet set = read_token_texts(train, file("v", "cab"), "characters");
  EXPECT_THAT(all(set.train), ElementsAre(0, 1, 2, 0, 1, 2));
  EXPECT_THAT(all(set.test), ElementsAre(2, 0, 1));
  EXPECT_THAT(complaint([&] { read_token_texts(train, file("w", "cad"), "characters"); }),
              HasSubstr((folder_ / "w").string()))
      << "a new character, by file";
}

TEST_F(TokenSets, BytesAreTokensOfTheirValue) {
  const TokenSet set = read_token_texts(file("t", "ab\n"), file("v", "\xC3\xA4"), "bytes");
  EXPECT_EQ(set.vocabulary, 256);
  EXPECT_THAT(all(set.train), ElementsAre('a', 'b', '\n'));
  EXPECT_THAT(all(set.test), ElementsAre(0xC3, 0xA4));
}

TEST_F(TokenSets, WhatIsNoTextIsNamedByItsFile) {
  const std::string name = (folder_ / "t").string();
  const auto seen = [&](const std::string& bytes) {
    return complaint([&] { read_token_texts(file("t", bytes), "", "characters"); });
  };
  EXPECT_THAT(seen(""), HasSubstr(name));
  EXPECT_THAT(seen("a"), HasSubstr(name));
  EXPECT_THAT(seen("aaaaaaaaaaaa"), HasSubstr(name)) << "one character";
  EXPECT_THAT(seen("abcdefg"), HasSubstr("test")) << "a tenth is one token";
  EXPECT_THAT(seen("abc\xFF"), HasSubstr(name));
  EXPECT_THAT(complaint([&] { read_token_texts(folder_ / "none", "", "bytes"); }),
              HasSubstr("none"));
  EXPECT_THAT(complaint([&] { read_token_texts(folder_, "", "bytes"); }),
              HasSubstr(folder_.string()));
}

TEST_F(TokenSets, TokenFilesAreSplitLikewise) {
  std::string tokens;
  for (char token = 0; token < 30; ++token) tokens += {token, 0};  // nanoGPT's form
  const TokenSet set = open_token_sets(file("t.bin", tokens), "", 30);
  EXPECT_EQ(set.train.size, 27);
  EXPECT_THAT(all(set.test), ElementsAre(27, 28, 29));
  EXPECT_EQ(set.tokenizer, nullptr);
}

}  // namespace
}  // namespace demi::data
