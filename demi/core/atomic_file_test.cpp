#include "demi/core/atomic_file.h"

#include <gtest/gtest.h>
#include <sys/resource.h>

#include <csignal>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <string>

#include "demi/core/error.h"

namespace demi {
namespace {

namespace fs = std::filesystem;

class AtomicFileTest : public testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = (fs::temp_directory_path() / "demi-test-XXXXXX").string();
    folder_ = mkdtemp(pattern.data());
    file_ = folder_ / "x";
  }
  void TearDown() override { fs::remove_all(folder_); }

  std::string content() const {
    std::ifstream in(file_, std::ios::binary);
    return {std::istreambuf_iterator<char>(in), {}};
  }
  auto files() const {
    return std::distance(fs::directory_iterator(folder_), fs::directory_iterator());
  }

  fs::path folder_, file_;
};

TEST_F(AtomicFileTest, ReplacesOnCommit) {
  write_atomically(file_, "old");
  AtomicFile file(file_);
  file.write("ne");
  file.write("w");
  EXPECT_EQ(content(), "old");
  file.commit();
  EXPECT_EQ(content(), "new");
  EXPECT_EQ(files(), 1);
}

TEST_F(AtomicFileTest, LeavesNothingWithoutCommit) {
  write_atomically(file_, "old");
  {
    AtomicFile file(file_);
    file.write("new");
  }
  EXPECT_EQ(content(), "old");
  EXPECT_EQ(files(), 1);
}

TEST_F(AtomicFileTest, ThrowsWhereNoFileCanBe) {
  EXPECT_THROW(AtomicFile(folder_ / "no" / "x"), TrainingError);
  fs::create_directory(file_);
  AtomicFile file(file_);
  EXPECT_THROW(file.commit(), TrainingError);
  EXPECT_EQ(files(), 1);
}

TEST_F(AtomicFileTest, NamesTheFileAndTheAdviceOfItsWriter) {
  try {
    write_atomically(folder_ / "no" / "x", "new", "point DEMI_RUNS elsewhere");
    FAIL();
  } catch (const TrainingError& error) {
    const std::string text = error.what();
    EXPECT_NE(text.find((folder_ / "no" / "x").string() + " cannot be opened"), std::string::npos)
        << text;
    EXPECT_NE(text.find("point DEMI_RUNS elsewhere"), std::string::npos) << text;
  }
}

// Also for a process in another container with the same number and the same disk.
TEST_F(AtomicFileTest, TwoAtOnceLeaveOneOfThemWhole) {
  EXPECT_NE(temporary_name(file_), temporary_name(file_));
  AtomicFile first(file_), second(file_);
  first.write("fir");
  second.write("second");
  first.write("st");
  first.commit();
  EXPECT_EQ(content(), "first");
  second.commit();
  EXPECT_EQ(content(), "second");
  EXPECT_EQ(files(), 1);
}

// A limit on the file's size makes write() fail in the middle, as a full disk does.
TEST_F(AtomicFileTest, KeepsTheOldFileWhenTheDiskIsFull) {
  write_atomically(file_, "old");
  rlimit before{};
  getrlimit(RLIMIT_FSIZE, &before);
  const auto handler = std::signal(SIGXFSZ, SIG_IGN);
  const rlimit small{.rlim_cur = 1000, .rlim_max = before.rlim_max};
  setrlimit(RLIMIT_FSIZE, &small);
  EXPECT_THROW(write_atomically(file_, std::string(5000, 'x')), TrainingError);
  setrlimit(RLIMIT_FSIZE, &before);
  std::signal(SIGXFSZ, handler);
  EXPECT_EQ(content(), "old");
  EXPECT_EQ(files(), 1);
}

}  // namespace
}  // namespace demi
