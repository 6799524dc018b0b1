// Truth: token files that the programs' own lines wrote (tests/fixtures/token_files/make.py).
#include "lab/tokens/token_form.h"

#include <gmock/gmock.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <random>

#include "demi/core/error.h"
#include "demi/core/source_dir_testing.h"
#include "lab/tokens/token_files.h"

namespace demi::tokens {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::HasSubstr;

fs::path token_fixture(const std::string& name) {
  return source_dir() / "tests/fixtures/token_files" / name;
}

std::vector<int64_t> tokens_of_make(int64_t factor, int64_t modulus) {
  std::vector<int64_t> tokens;
  for (int64_t i = 0; i < 90; ++i) tokens.push_back(i * factor % modulus);
  return tokens;
}

TEST(TokenForms, AreReadAsTheirProgramsMeanThem) {
  const auto read = [](const std::string& name) {
    const auto source = open_token_files(token_fixture(name).string(), 128256);
    std::vector<int64_t> tokens(static_cast<std::size_t>(source->size()));
    source->copy(0, source->size(), tokens.data());
    return tokens;
  };
  for (const char* name :
       {"nanogpt.bin", "llm_c_gpt2.bin", "edufineweb_train_000001.npy", "megatron_uint16.bin"})
    EXPECT_EQ(read(name), tokens_of_make(37, 60000)) << name;
  for (const char* name :
       {"llm_c_llama3.bin", "uint32.npy", "int32.npy", "int64.npy", "megatron_int32.bin"})
    EXPECT_EQ(read(name), tokens_of_make(1501, 128256)) << name;
}

std::string token_complaint(const fs::path& file) {
  try {
    open_token_files(file.string(), 128256);
  } catch (const DataError& error) {
    return error.what();
  }
  return "";
}

TEST(TokenForms, OthersAreRefusedByWhatTheyAre) {
  const auto of = [](const char* name) { return token_complaint(token_fixture(name)); };
  EXPECT_THAT(of("archive.npz"), HasSubstr("a zip archive"));
  EXPECT_THAT(of("float32.npy"), AllOf(HasSubstr("dtype holds no tokens; seen: '<f4'")));
  EXPECT_THAT(of("big_endian.npy"), HasSubstr("seen: '>u2'"));
  EXPECT_THAT(of("rows.npy"), AllOf(HasSubstr("seen: (2, 3)"), HasSubstr("reshape(-1)")));
  EXPECT_THAT(of("megatron_int32.idx"), AllOf(HasSubstr("Megatron's index"), HasSubstr(".bin")));
  EXPECT_THAT(of("uint32_without_header.bin"),
              AllOf(HasSubstr("more than 16 bits"), HasSubstr("numpy.uint32")));
  EXPECT_THAT(of("make.py"), AllOf(HasSubstr("a text"), HasSubstr("--data text")));
}

class DamagedTokenFile : public ::testing::Test {
 protected:
  DamagedTokenFile()
      : folder_(fs::temp_directory_path() / ("demi-form" + std::to_string(getpid()))) {
    fs::create_directories(folder_);
  }
  ~DamagedTokenFile() override { fs::remove_all(folder_); }

  std::string with(const std::string& name, const std::string& content) {
    std::ofstream(folder_ / name, std::ios::binary) << content;
    return token_complaint(folder_ / name);
  }
  static std::string content_of_fixture(const std::string& name) {
    std::ifstream in(token_fixture(name), std::ios::binary);
    return {std::istreambuf_iterator<char>(in), {}};
  }

  fs::path folder_;
};

TEST_F(DamagedTokenFile, IsRefusedWhereverItEnds) {
  for (const char* name : {"edufineweb_train_000001.npy", "int64.npy", "llm_c_gpt2.bin"}) {
    const std::string whole = content_of_fixture(name);
    EXPECT_EQ(with(name, whole), "") << name;
    EXPECT_THAT(with(name, whole + "\1\1"), HasSubstr("not that of the header's tokens")) << name;
    EXPECT_THAT(with(name, whole.substr(0, whole.size() - 2)), HasSubstr("header's tokens"));
  }
  const std::string whole = content_of_fixture("int32.npy");
  for (std::size_t size = 6; size < 128; size += 2)
    EXPECT_NE(with("a.npy", whole.substr(0, size)), "") << size;
  fs::copy(token_fixture("megatron_uint16.idx"), folder_ / "m.idx");
  EXPECT_THAT(with("m.bin", "\1\1\1\1"), HasSubstr("seen: 4 bytes; accepted: 180 bytes"));
  fs::resize_file(folder_ / "m.idx", 40);
  EXPECT_THAT(with("m.bin", "\1\1\1\1"), HasSubstr("ends within its sequences"));
  EXPECT_THAT(with("p.bin", "version https://git-lfs.github.com/spec/v1\noid sha256:1\nsize 8\n"),
              HasSubstr("git lfs pull"));
}

// A form is found, or DataError says what is wrong: nothing else, and no byte beyond the file.
TEST_F(DamagedTokenFile, IsReadOrRefusedWhateverItsFirstBytesAre) {
  std::mt19937 random(1);
  fs::copy(token_fixture("megatron_uint16.idx"), folder_ / "m.idx");
  for (const char* name : {"int64.npy", "llm_c_gpt2.bin", "megatron_uint16.bin", "archive.npz"}) {
    const std::string whole = content_of_fixture(name);
    for (int i = 0; i < 60; ++i) {
      std::string changed = whole.substr(0, i % 3 == 0 ? random() % whole.size() : whole.size());
      for (std::size_t j = 0; j < 3 && !changed.empty(); ++j)
        changed[random() % std::min<std::size_t>(changed.size(), 130)] =
            static_cast<char>(random() % 256);
      EXPECT_NO_THROW(with(i % 2 == 0 ? "m.bin" : "a.npy", changed));
    }
  }
  const std::string index = content_of_fixture("megatron_uint16.idx");
  std::ofstream(folder_ / "m.bin", std::ios::binary) << content_of_fixture("megatron_uint16.bin");
  for (int i = 0; i < 60; ++i) {
    std::string changed = index.substr(0, i % 3 == 0 ? random() % index.size() : index.size());
    if (!changed.empty()) changed[random() % changed.size()] = static_cast<char>(random() % 256);
    std::ofstream(folder_ / "m.idx", std::ios::binary) << changed;
    EXPECT_NO_THROW(token_complaint(folder_ / "m.bin"));
  }
}

// A number below 0 is none, and is seen when it is read.
TEST_F(DamagedTokenFile, ANegativeTokenIsRefusedAsItIsRead) {
  std::string whole = content_of_fixture("int32.npy");
  whole.replace(whole.size() - 4, 4, "\xff\xff\xff\xff");
  EXPECT_EQ(with("a.npy", whole), "");
  const auto source = open_token_files((folder_ / "a.npy").string(), 128256);
  int64_t token = 0;
  EXPECT_THAT([&] { source->copy(89, 1, &token); },
              ::testing::ThrowsMessage<DataError>(HasSubstr("seen: -1")));
}

}  // namespace
}  // namespace demi::tokens
