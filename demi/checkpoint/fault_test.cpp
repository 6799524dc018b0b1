// Every system call of a save fails, is cut short, or is the last of the process. SQLite is tested
// in this way (https://www.sqlite.org/testing.html, "I/O Error Testing", "Crash Testing").
#include <gmock/gmock.h>
#include <sys/mman.h>
#include <sys/wait.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <iterator>
#include <optional>

#include "demi/checkpoint/checkpoint_testing.h"
#include "demi/checkpoint/folder.h"
#include "demi/checkpoint/system_calls_testing.h"
#include "demi/core/error.h"

namespace demi::checkpoint {
namespace {

namespace fs = std::filesystem;
using testing::AnyOf;
using testing::ElementsAre;
using testing::HasSubstr;
using Kind = Intervention::Kind;

constexpr int kSaved = 0, kRefused = 10, kOther = 20;

/// Text that a process of ours leaves without a system call.
class SharedText {
 public:
  SharedText()
      : text_(static_cast<char*>(
            ::mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0))) {}
  ~SharedText() { ::munmap(text_, kBytes); }
  SharedText(const SharedText&) = delete;
  SharedText& operator=(const SharedText&) = delete;

  void set(const char* text) const { std::snprintf(text_, kBytes, "%s", text); }
  std::string get() const { return text_; }

 private:
  static constexpr std::size_t kBytes = 4096;
  char* text_;
};

class SaveUnderFaults : public CheckpointFolder {
 protected:
  void SetUp() override {
    CheckpointFolder::SetUp();
    checkpoints_ = folder_ / "checkpoints";
    old_.run = new_.run = "0123456789abcdef";  // whichever process saves them
    // Saves once here, so that the intercepted process does nothing for the first time.
    start_over();
    save(checkpoints_, 2, new_, {.is_best = true});
  }

  /// A folder with `old_`, which is also the best, and with what a killed save left.
  void start_over() const {
    fs::remove_all(checkpoints_);
    save(checkpoints_, 1, old_, {.is_best = true});
    fs::create_directory(checkpoints_ / "step-00000009.1.tmp");
    write_bytes(checkpoints_ / "step-00000009.1.tmp" / "model.safetensors", "half");
  }

  /// The work of the process whose calls are intercepted.
  int save_and_report() const {
    try {
      save(checkpoints_, 2, new_, {.is_best = true});
      return kSaved;
    } catch (const TrainingError& error) {
      message_.set(error.what());
      return kRefused;
    } catch (const std::exception& error) {
      message_.set(error.what());
      return kOther;
    }
  }

  /// Saves `new_` beside `old_`, with one intervention; then examines the result.
  Ended save_with(const Intervention& intervention) {
    start_over();
    message_.set("");
    const Ended ended = run_traced([this] { return save_and_report(); }, intervention);
    if (ended.supported) look_at(ended, intervention);
    return ended;
  }

  void look_at(const Ended& ended, const Intervention& what) {
    SCOPED_TRACE("call " + std::to_string(what.at) + ", system call number " +
                 std::to_string(ended.number) + ", error " + std::to_string(what.error) + ": " +
                 message_.get());
    const bool killed = what.kind == Kind::kill_before || what.kind == Kind::kill_after;
    if (killed)
      EXPECT_TRUE(WIFSIGNALED(ended.status)) << "status " << ended.status;
    else
      EXPECT_TRUE(WIFEXITED(ended.status)) << "the process lives, status " << ended.status;
    std::optional<Checkpoint> left, best;
    ASSERT_NO_THROW(left = load(checkpoints_)) << "a checkpoint is there and loads";
    ASSERT_NO_THROW(best = load(checkpoints_ / "best"));
    const bool is_new = same(*left, new_);
    EXPECT_TRUE(is_new || same(*left, old_)) << "the old one or the new one, whole";
    EXPECT_TRUE(same(*best, new_) || same(*best, old_));
    for (const std::string& name : names_in(checkpoints_)) {
      if (!parse_checkpoint_name(name)) continue;
      EXPECT_NO_THROW(load(checkpoints_ / name)) << name;
    }
    if (!killed) look_at_report(WEXITSTATUS(ended.status), what, is_new);
    // The next save finds nothing in its way, and removes all that this one left.
    save(checkpoints_, 3, old_, {.is_best = true});
    EXPECT_TRUE(same(load(checkpoints_), old_));
    EXPECT_THAT(names_in(checkpoints_), ElementsAre("best", "last", "lock", "step-00000003"));
  }

  void look_at_report(int result, const Intervention& what, bool is_new) const {
    EXPECT_NE(result, kOther) << "another error than TrainingError";
    if (result == kSaved) {
      EXPECT_TRUE(is_new) << "it returned, so it has saved";
      return;
    }
    EXPECT_THAT(message_.get(), HasSubstr(checkpoints_.string()));
    EXPECT_THAT(message_.get(), HasSubstr(std::strerror(what.error)));
  }

  /// All calls of a save, one after the other.
  void at_every_call(Kind kind, int error = 0) {
    const Ended counted = save_with({.kind = Kind::none});
    if (!counted.supported) GTEST_SKIP() << "processes cannot be traced here";
    ASSERT_GT(counted.calls.size(), 60U);
    for (int64_t at = 1; at <= std::ssize(counted.calls); ++at)
      save_with({.kind = kind, .at = at, .error = error});
  }

  fs::path checkpoints_;
  Checkpoint old_ = ten_tensors(1), new_ = ten_tensors(2);
  SharedText message_;
};

// No failing call can show this: nothing is renamed before it and the file that it replaces are on
// the disk.
TEST_F(SaveUnderFaults, SynchronisesBeforeAndAfterEachRename) {
  const Ended ended = save_with({.kind = Kind::none});
  if (!ended.supported) GTEST_SKIP() << "processes cannot be traced here";
  std::string order;
  for (const int64_t number : ended.calls) {
    if (number == SYS_fsync || number == SYS_fdatasync) order += 's';
    if (number == SYS_rename || number == SYS_renameat || number == SYS_renameat2) order += 'r';
  }
  const std::string three_files_and_their_folder = "ssss", published = "rs";
  const std::string last = "srs", best = "srs", old_one_away = "r";
  EXPECT_EQ(order, three_files_and_their_folder + published + last + best + old_one_away);
}

// Without an old checkpoint there is none, or the new one whole.
TEST_F(SaveUnderFaults, TheFirstSaveIsKilledAtEveryCall) {
  for (int64_t at = 1;; ++at) {
    fs::remove_all(checkpoints_);
    const Ended ended =
        run_traced([this] { return save_and_report(); }, {.kind = Kind::kill_after, .at = at});
    if (!ended.supported) GTEST_SKIP() << "processes cannot be traced here";
    if (ended.number < 0) break;
    try {
      EXPECT_TRUE(same(load(checkpoints_), new_)) << "call " << at;
    } catch (const DataError& error) {
      EXPECT_THAT(error.what(), AnyOf(HasSubstr("seen: a folder without checkpoints"),
                                      HasSubstr("seen: nothing of that name"),
                                      HasSubstr("seen: No such file or directory")))
          << "call " << at;
    }
  }
}

TEST_F(SaveUnderFaults, EveryCallFailsWithAnInputOutputError) { at_every_call(Kind::fail, EIO); }
TEST_F(SaveUnderFaults, EveryCallFindsTheDiskFull) { at_every_call(Kind::fail, ENOSPC); }
TEST_F(SaveUnderFaults, EveryCallIsInterrupted) { at_every_call(Kind::fail, EINTR); }
TEST_F(SaveUnderFaults, EveryCallIsForbidden) { at_every_call(Kind::fail, EACCES); }
TEST_F(SaveUnderFaults, EveryWriteAndReadIsCutShort) { at_every_call(Kind::shorten); }
TEST_F(SaveUnderFaults, KilledBeforeEveryCall) { at_every_call(Kind::kill_before); }
TEST_F(SaveUnderFaults, KilledAfterEveryCall) { at_every_call(Kind::kill_after); }

// Reading changes nothing, so what is looked at is that the process lives and says why it failed.
class LoadUnderFaults : public CheckpointFolder {
 protected:
  int load_and_report() const {
    try {
      return same(load(folder_), saved_) && same(map(folder_ / "step-00000001"), saved_) ? kSaved
                                                                                         : kOther;
    } catch (const DataError& error) {
      message_.set(error.what());
      return kRefused;
    } catch (const std::exception& error) {
      message_.set(error.what());
      return kOther;
    }
  }

  void at_every_call(Kind kind, int error = 0) {
    save(folder_, 1, saved_);
    ASSERT_EQ(load_and_report(), kSaved) << message_.get();
    const auto read = [this] { return load_and_report(); };
    const Ended counted = run_traced(read, {.kind = Kind::none});
    if (!counted.supported) GTEST_SKIP() << "processes cannot be traced here";
    ASSERT_GT(counted.calls.size(), 20U);
    int refused = 0;
    for (int64_t at = 1; at <= std::ssize(counted.calls); ++at) {
      message_.set("");
      const Ended ended = run_traced(read, {.kind = kind, .at = at, .error = error});
      SCOPED_TRACE("call " + std::to_string(at) + ", system call number " +
                   std::to_string(ended.number) + ": " + message_.get());
      ASSERT_TRUE(WIFEXITED(ended.status)) << "the process lives, status " << ended.status;
      EXPECT_NE(WEXITSTATUS(ended.status), kOther);
      if (WEXITSTATUS(ended.status) != kRefused) continue;
      ++refused;
      EXPECT_THAT(message_.get(), HasSubstr(folder_.string()));
      EXPECT_THAT(message_.get(), HasSubstr(std::strerror(error)));
    }
    EXPECT_EQ(refused > 0, kind == Kind::fail && error != EINTR);
  }

  Checkpoint saved_ = ten_tensors(1);
  SharedText message_;
};

TEST_F(LoadUnderFaults, EveryCallFailsWithAnInputOutputError) { at_every_call(Kind::fail, EIO); }
TEST_F(LoadUnderFaults, EveryCallIsForbidden) { at_every_call(Kind::fail, EACCES); }
TEST_F(LoadUnderFaults, EveryReadIsCutShort) { at_every_call(Kind::shorten); }

}  // namespace
}  // namespace demi::checkpoint
