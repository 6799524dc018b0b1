// The program that is called in a fork of this process is the one that is started.
#include <gmock/gmock.h>
#include <signal.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <thread>

#include "lab/recipes/same_run_testing.h"
#include "tests/cli_testing.h"

namespace cli_testing {
namespace {

class LoadedProgram : public Cli {
 protected:
  void SetUp() override {
    if (!can_be_forked() || !why_not_loaded({}).empty()) GTEST_SKIP() << why_not_loaded({});
  }

  static Words mlp(const char* epochs) {
    return {"train",        "mlp", "--in",     "8",    "--out",    "8",   "--batches", "4", "--mp",
            "--batch-size", "4",   "--epochs", epochs, "--device", "cpu", "--json"};
  }

  // The file that the process of a run executes.
  fs::path file_of_a_run() {
    fs::remove_all(folder_ / "runs");
    const pid_t child = start(mlp("1000000"));
    while (!fs::exists(folder_ / "runs") && !has_ended(child))
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    const fs::path file = fs::read_symlink("/proc/" + std::to_string(child) + "/exe");
    kill(child, SIGTERM);
    EXPECT_EQ(finish(child).code, 128 + SIGTERM);
    return file;
  }

  // Why not, with the variable set to this.
  static std::string why_not_with(const char* name, const char* value) {
    const char* const before = std::getenv(name);
    const std::string was = before ? before : "";
    setenv(name, value, 1);
    const std::string why = why_not_loaded({"train", "mlp"});
    before ? setenv(name, was.c_str(), 1) : unsetenv(name);
    return why;
  }
};

TEST_F(LoadedProgram, IsCalledUnlessATestAsksForAStart) {
  EXPECT_EQ(file_of_a_run(), fs::read_symlink("/proc/self/exe"));
  starts_for_real_ = true;
  EXPECT_EQ(file_of_a_run(), fs::canonical(std::getenv("DEMI_PROGRAM")));
}

TEST_F(LoadedProgram, SaysWhatTheStartedOneSays) {
  for (const Words& words :
       {Words{}, Words{"--version"}, Words{"train", "--help"}, Words{"policy", "--json"},
        Words{"number", "0.1"}, Words{"train", "mlp", "--epochs", "0"}, Words{"inspect", "none"}}) {
    starts_for_real_ = false;
    const Outcome called = run(words);
    starts_for_real_ = true;
    const Outcome started = run(words);
    EXPECT_EQ(called.code, started.code);
    EXPECT_EQ(called.out, started.out);
    EXPECT_EQ(called.err, started.err);
  }
}

TEST_F(LoadedProgram, TrainsToTheBitsOfTheStartedOne) {
  const Outcome called = run(mlp("3"));
  starts_for_real_ = true;
  const Outcome started = run(mlp("3"));
  ASSERT_EQ(called.code, 0) << called.err;
  EXPECT_EQ(same_run::without_times(called.out), same_run::without_times(started.out));
  same_run::expect_same_run(folder_ / "runs" / "train-mlp-001", folder_ / "runs" / "train-mlp-002");
}

TEST_F(LoadedProgram, GivesWayWhereLoadingOrThisProcessHasReadAnotherEnvironment) {
  EXPECT_EQ(why_not_with("DEMI_LR", "0.5"), "") << "read by each command";
  EXPECT_EQ(why_not_with("TERM", "dumb"), "");
  for (const char* name : {"OMP_NUM_THREADS", "LD_PRELOAD", "MALLOC_ARENA_MAX", "ONEDNN_VERBOSE",
                           "ATEN_CPU_CAPABILITY", "DEMI_KERNELS", "RANK"})
    EXPECT_THAT(why_not_with(name, "1"), HasSubstr(name));
}

TEST_F(LoadedProgram, GivesWayToRanks) {
  EXPECT_THAT(why_not_loaded({"train", "mlp", "--ranks", "2"}), HasSubstr("--ranks"));
  EXPECT_THAT(why_not_loaded({"train", "mlp", "--devices=cpu,cpu"}), HasSubstr("--devices"));
  // Ranks that no argument names would be these tests.
  const Outcome outcome = run({}, [] {
    setenv("CLI_TESTS_IN_PROGRAM", "1", 1);
    execl("/proc/self/exe", "demi", nullptr);
  });
  EXPECT_EQ(outcome.code, 126);
  EXPECT_THAT(outcome.err, HasSubstr("must set starts_for_real_"));
}

TEST_F(LoadedProgram, GivesWayWhereThisProcessHasAnotherThread) {
  std::atomic<bool> is_over{false};
  std::thread other([&] { is_over.wait(false); });
  EXPECT_FALSE(can_be_forked());
  is_over = true;
  is_over.notify_one();
  other.join();
}

}  // namespace
}  // namespace cli_testing
