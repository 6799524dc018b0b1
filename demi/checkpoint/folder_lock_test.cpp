#include "demi/checkpoint/folder_lock.h"

#include <gmock/gmock.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <csignal>
#include <optional>
#include <thread>
#include <vector>

#include "demi/checkpoint/checkpoint_testing.h"
#include "demi/checkpoint/writer.h"
#include "demi/core/error.h"

namespace demi::checkpoint {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

/// Another process that holds the folder until it is killed.
class OtherRun {
 public:
  explicit OtherRun(const std::filesystem::path& folder) {
    std::array<int, 2> ready{};
    EXPECT_EQ(::pipe(ready.data()), 0);
    child_ = ::fork();
    if (child_ == 0) {
      const FolderLock lock(folder);
      if (::write(ready[1], "x", 1) == 1) ::pause();
      ::_exit(0);
    }
    char x = 0;
    EXPECT_EQ(::read(ready[0], &x, 1), 1);
    ::close(ready[0]);
    ::close(ready[1]);
  }
  ~OtherRun() { kill(); }
  OtherRun(const OtherRun&) = delete;
  OtherRun& operator=(const OtherRun&) = delete;

  void kill() {
    if (child_ > 0) {
      ::kill(child_, SIGKILL);
      ::waitpid(child_, nullptr, 0);
    }
    child_ = 0;
  }
  pid_t process() const { return child_; }

 private:
  pid_t child_ = 0;
};

template <class Call>
std::string refusal_of(const Call& call) {
  try {
    call();
  } catch (const UsageError& error) {
    return error.what();
  }
  return "no UsageError";
}

using FolderLockTest = CheckpointFolder;

TEST_F(FolderLockTest, RefusesASecondRunAndNamesTheFirst) {
  save(folder_, 1, ten_tensors(1));
  std::optional<OtherRun> other(std::in_place, folder_);
  const auto refused = AllOf(HasSubstr("another run saves to the folder " + folder_.string()),
                             HasSubstr("process " + std::to_string(other->process()) + " on "));
  EXPECT_THAT(refusal_of([&] { FolderLock lock(folder_); }), refused);
  EXPECT_THAT(refusal_of([&] { Writer writer(folder_); }), refused);
  EXPECT_THAT(refusal_of([&] { save(folder_, 2, ten_tensors(2)); }), refused);
  EXPECT_TRUE(same(load(folder_), ten_tensors(1))) << "reading needs no lock";
  other->kill();
  const FolderLock lock(folder_);
  save(folder_, 2, ten_tensors(2));
  EXPECT_TRUE(same(load(folder_), ten_tensors(2)));
}

TEST_F(FolderLockTest, RefusesASecondRunOfOneProcess) {
  std::optional<FolderLock> lock(folder_);
  const auto said = refusal_of([&] { FolderLock second(folder_); });
  EXPECT_THAT(said, HasSubstr("this process, " + std::to_string(getpid())));
  EXPECT_THAT(said, Not(HasSubstr("\n")));
  save(folder_, 1, ten_tensors(1));
  FolderLock moved(std::move(*lock));
  lock.reset();
  EXPECT_THAT(refusal_of([&] { FolderLock second(folder_); }), HasSubstr("this process"));
  lock.emplace(folder_ / "other");
  moved = std::move(*lock);
  lock.reset();
  const FolderLock again(folder_);
}

TEST_F(FolderLockTest, MakesFoldersAndTakesTheirNamesInEverySpelling) {
  const std::filesystem::path deep = folder_ / "a" / "b" / "c";
  const FolderLock lock(deep / "");
  EXPECT_TRUE(std::filesystem::is_directory(deep));
  EXPECT_THAT(refusal_of([&] { FolderLock second(folder_ / "a" / "." / "b" / "c"); }),
              HasSubstr("this process"));
}

// One thread gives the folder back while another asks for it.
TEST_F(FolderLockTest, IsNotRefusedForWhatThisProcessGivesBack) {
  std::vector<std::string> refusals(2);
  std::vector<std::thread> threads;
  for (std::string& said : refusals)
    threads.emplace_back([&] {
      for (int time = 0; time < 5'000 && said.empty(); ++time) {
        const std::string refusal = refusal_of([&] { FolderLock lock(folder_); });
        if (refusal != "no UsageError" && refusal.find("this process") == std::string::npos)
          said = refusal;
      }
    });
  for (std::thread& thread : threads) thread.join();
  for (const std::string& said : refusals) EXPECT_EQ(said, "");
}

// While the other lives, what it is writing is no leftover.
TEST_F(FolderLockTest, LeavesTheTemporaryFilesOfALivingRun) {
  OtherRun other(folder_);
  const auto temporary = folder_ / "step-00000002.1.tmp";
  std::filesystem::create_directory(temporary);
  EXPECT_THROW(save(folder_, 2, ten_tensors(2)), UsageError);
  EXPECT_TRUE(std::filesystem::exists(temporary));
  other.kill();
  save(folder_, 2, ten_tensors(2));
  EXPECT_FALSE(std::filesystem::exists(temporary));
}

}  // namespace
}  // namespace demi::checkpoint
