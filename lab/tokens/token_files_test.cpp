#include "lab/tokens/token_files.h"

#include <gmock/gmock.h>
#include <unistd.h>

#include <fstream>
#include <numeric>

#include "demi/core/error.h"

namespace demi::tokens {
namespace {

namespace fs = std::filesystem;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

class TokenFile : public ::testing::Test {
 protected:
  TokenFile() : folder_(fs::temp_directory_path() / ("demi-tokens-" + std::to_string(getpid()))) {
    fs::create_directories(folder_);
  }
  ~TokenFile() override { fs::remove_all(folder_); }

  template <class Value>
  std::string write(const std::string& name, std::vector<int32_t> header,
                    const std::vector<Value>& values) {
    const fs::path path = folder_ / name;
    if (!header.empty()) header.resize(256);
    std::ofstream file(path, std::ios::binary);
    file.write(reinterpret_cast<const char*>(header.data()),
               static_cast<std::streamsize>(header.size() * sizeof(int32_t)));
    file.write(reinterpret_cast<const char*>(values.data()),
               static_cast<std::streamsize>(values.size() * sizeof(Value)));
    return path.string();
  }

  static std::vector<int64_t> all_of(const TokenSource& source) {
    std::vector<int64_t> tokens(static_cast<std::size_t>(source.size()));
    source.copy(0, source.size(), tokens.data());
    return tokens;
  }

  fs::path folder_;
};

using U16 = std::vector<uint16_t>;
using U32 = std::vector<uint32_t>;

// The forms as nanoGPT's prepare.py and llm.c's data_common.py write them.
TEST_F(TokenFile, KnowsThreeForms) {
  EXPECT_THAT(all_of(*open_token_files(write("n.bin", {}, U16{1, 65535, 3}), 65536)),
              ElementsAre(1, 65535, 3));
  EXPECT_THAT(all_of(*open_token_files(write("g.bin", {20240520, 1, 2}, U16{7, 50256}), 50257)),
              ElementsAre(7, 50256));
  EXPECT_THAT(all_of(*open_token_files(write("l.bin", {20240801, 7, 2}, U32{9, 128255}), 128256)),
              ElementsAre(9, 128255));
}

// 600 tokens are longer than a header: their first numbers decide.
TEST_F(TokenFile, ALongFileWithoutAHeaderIsNanoGpts) {
  U16 tokens(600);
  std::iota(tokens.begin(), tokens.end(), uint16_t{0});
  const auto source = open_token_files(write("n.bin", {}, tokens), 600);
  EXPECT_EQ(source->size(), 600);
  EXPECT_EQ(all_of(*source).back(), 599);
}

TEST_F(TokenFile, ShardsFollowEachOtherByName) {
  write("t_000002.bin", {20240520, 1, 1}, U16{4});
  write("t_000001.bin", {20240520, 1, 3}, U16{1, 2, 3});
  write("t_000010.bin", {}, U16{5, 6});
  write("v_000001.bin", {}, U16{9});
  const auto source = open_token_files((folder_ / "t_*.bin").string(), 10);
  EXPECT_THAT(all_of(*source), ElementsAre(1, 2, 3, 4, 5, 6));
  int64_t across[3];
  source->copy(2, 3, across);
  EXPECT_THAT(across, ElementsAre(3, 4, 5));
  EXPECT_EQ(open_token_files((folder_ / "?_000001.bin").string(), 10)->size(), 4);
}

TEST_F(TokenFile, NamesATokenBeyondTheVocabulary) {
  const std::string file = write("g.bin", {20240520, 1, 3}, U16{7, 99, 8});
  const auto source = open_token_files(file, 99);
  int64_t token = 0;
  source->copy(2, 1, &token);
  EXPECT_EQ(token, 8) << "only what is read is checked";
  EXPECT_THAT(
      [&] { source->copy(0, 3, std::vector<int64_t>(3).data()); },
      ThrowsMessage<DataError>(HasSubstr(
          file + ": a token beyond the vocabulary, at byte 1026; seen: 99; accepted: 0 to 98")));
}

TEST_F(TokenFile, SaysWhatIsWrongWithAFile) {
  const auto complaint = [&](const std::string& pattern) -> std::string {
    try {
      open_token_files(pattern, 100);
    } catch (const DataError& error) {
      return error.what();
    }
    return "";
  };
  EXPECT_THAT(complaint(write("a.bin", {}, std::vector<uint8_t>{1, 0, 2})),
              HasSubstr("ends within a token; seen: 3 bytes"));
  EXPECT_THAT(complaint(write("b.bin", {}, U16{})), HasSubstr("holds no tokens"));
  EXPECT_THAT(complaint(write("c.bin", {20240520, 1, 0}, U16{})), HasSubstr("holds no tokens"));
  EXPECT_THAT(complaint(write("d.bin", {20240520, 2, 1}, U16{1})),
              HasSubstr("another version of llm.c's token files; seen: 2; accepted: 1"));
  EXPECT_THAT(complaint(write("e.bin", {20240801, 1, 1}, U32{1})), HasSubstr("accepted: 7"));
  EXPECT_THAT(complaint(write("f.bin", {20240520, 1, 3}, U16{1, 2})),
              HasSubstr("seen: 1028 bytes; accepted: 1030 bytes"));
  EXPECT_THAT(complaint((folder_ / "none.bin").string()), HasSubstr("No such file"));
  EXPECT_THAT(complaint((folder_ / "none_*.bin").string()), HasSubstr("no file has such a name"));
  EXPECT_THAT(complaint((folder_ / "no" / "x_*.bin").string()), HasSubstr("No such file"));
  EXPECT_THAT(complaint(folder_.string()), HasSubstr("no file of tokens"));
}

}  // namespace
}  // namespace demi::tokens
