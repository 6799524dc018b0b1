#include "demi/checkpoint/run_id.h"

#include <c10/util/Exception.h>
#include <gmock/gmock.h>
#include <sys/resource.h>
#include <torch/nn/modules/linear.h>

#include <atomic>
#include <optional>
#include <thread>

#include "demi/checkpoint/checkpoint_testing.h"
#include "demi/checkpoint/folder.h"
#include "demi/checkpoint/manifest.h"
#include "demi/checkpoint/training_state.h"
#include "demi/checkpoint/writer.h"
#include "demi/core/error.h"

namespace demi::checkpoint {
namespace {

namespace fs = std::filesystem;
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;

class Warnings : public c10::WarningHandler {
 public:
  void process(const c10::Warning& warning) override { said.push_back(warning.msg()); }
  std::vector<std::string> said;

 private:
  c10::WarningUtils::WarningHandlerGuard guard_{this};
};

/// A model that is saved and loaded as a loop does.
class RunsOfAFolder : public CheckpointFolder {
 protected:
  fs::path save_step(int64_t step, const SaveOptions& options = {}) {
    return save(folder_, step, loop::Job{.models = {model_.get()}}, options);
  }
  void save_in_another_run(std::initializer_list<int64_t> steps, const SaveOptions& options = {}) {
    in_another_process([&] {
      for (const int64_t step : steps) save_step(step, options);
    });
  }
  void go_on() { load(folder_, loop::Job{.models = {model_.get()}}); }

  torch::nn::Linear model_{2, 2};
};

TEST_F(RunsOfAFolder, AProgramThatStartsAgainRemovesNothingOfTheRunBefore) {
  save_in_another_run({99'999, 100'000});
  Warnings warnings;
  save_step(10);
  EXPECT_THAT(names(), ElementsAre("last", "lock", "step-00000010", "step-00100000"));
  EXPECT_EQ(find(folder_), folder_ / "step-00000010");
  ASSERT_EQ(warnings.said.size(), 1U);
  EXPECT_THAT(warnings.said.front(), AllOf(HasSubstr(folder_.string()), HasSubstr("step-00100000"),
                                           HasSubstr("another run")));
  save_step(20);
  EXPECT_THAT(names(), ElementsAre("last", "lock", "step-00000020", "step-00100000"));
  EXPECT_EQ(warnings.said.size(), 1U) << "said once";
}

TEST_F(RunsOfAFolder, AWriterWarnsInTheCallersThread) {
  save_in_another_run({5});
  Warnings warnings;
  Writer writer(folder_);
  writer.save(1, ten_tensors(1));
  EXPECT_EQ(warnings.said.size(), 1U);
  writer.wait();
  EXPECT_THAT(names(), ElementsAre("last", "lock", "step-00000001", "step-00000005"));
}

TEST_F(RunsOfAFolder, OneThatLoadsGoesOnWithTheRun) {
  save_in_another_run({10});
  const std::string run = read_manifest(folder_ / "step-00000010").run;
  in_another_process([&] {
    go_on();
    save_step(20);
  });
  EXPECT_THAT(names(), ElementsAre("last", "lock", "step-00000020"));
  EXPECT_EQ(read_manifest(folder_ / "step-00000020").run, run);
  Warnings warnings;
  const Checkpoint loaded = load(folder_);
  EXPECT_EQ(loaded.run, run);
  restore(loaded, loop::Job{.models = {model_.get()}});
  save_step(30);
  EXPECT_THAT(names(), ElementsAre("last", "lock", "step-00000030"));
  EXPECT_TRUE(warnings.said.empty());
}

// To evaluate a model, or to begin with its weights, is to go on with no run.
TEST_F(RunsOfAFolder, LoadingWeightsAloneTakesNothingOver) {
  save_in_another_run({10});
  load(folder_, *model_);
  load(folder_);
  save_step(1);
  EXPECT_THAT(names(), ElementsAre("last", "lock", "step-00000001", "step-00000010"));
}

TEST_F(RunsOfAFolder, AFolderOfTheUsersOwnStays) {
  fs::create_directory(folder_ / "step-00000001");
  write_bytes(folder_ / "step-00000001" / "notes", "mine");
  Warnings warnings;
  for (const int64_t step : {1, 2, 3}) save_step(step);
  EXPECT_TRUE(warnings.said.empty()) << "it is no other run's";
  EXPECT_EQ(bytes_of(folder_ / "step-00000001" / "notes"), "mine");
  EXPECT_THAT(names(), ElementsAre("last", "lock", "step-00000001", "step-00000003"));
}

// The process was killed before `last` was replaced, or the file was lost.
TEST_F(RunsOfAFolder, ThoseOfTheRunThatNoFileNamesCount) {
  save_in_another_run({10, 20, 30}, {.keep_last = 3});
  const std::string lock = bytes_of(folder_ / "lock");
  write_bytes(folder_ / "last", names_to_text({"step-00000010"}));
  go_on();
  save_step(40, {.keep_last = 2});
  EXPECT_THAT(names(), ElementsAre("last", "lock", "step-00000010", "step-00000040"));
  fs::remove(folder_ / "last");
  save_step(50, {.keep_last = 2});
  EXPECT_THAT(names(), ElementsAre("last", "lock", "step-00000040", "step-00000050"));
}

// Checkpoints of Python's save and of older versions name no run.
TEST_F(RunsOfAFolder, WithoutAnIdTheyAreThoseOfTheRunThatLoadsThem) {
  const auto without_id = [&](const std::string& name) {
    Manifest manifest = read_manifest(folder_ / name);
    manifest.run = "";
    write_bytes(folder_ / name / kManifestFile, to_text(manifest));
  };
  save_in_another_run({10, 20}, {.keep_last = 2});
  without_id("step-00000010");
  without_id("step-00000020");
  EXPECT_EQ(load(folder_).run, kNoRunId);
  save_in_another_run({1});
  EXPECT_THAT(names(),
              ElementsAre("last", "lock", "step-00000001", "step-00000010", "step-00000020"));
  write_bytes(folder_ / "last", names_to_text({"step-00000020", "step-00000010"}));
  fs::remove_all(folder_ / "step-00000001");
  in_another_process([&] {
    go_on();
    save_step(30, {.keep_last = 2});
    EXPECT_THAT(names(), ElementsAre("last", "lock", "step-00000020", "step-00000030"));
    save_step(40);
  });
  EXPECT_THAT(names(), ElementsAre("last", "lock", "step-00000040"));
  EXPECT_NE(read_manifest(folder_ / "step-00000040").run, kNoRunId) << "from now on it has an id";
}

TEST_F(RunsOfAFolder, OfTwoThatWereLoadedTheOneInLastGoesOn) {
  save_in_another_run({100});
  save_in_another_run({10});
  const std::string run = read_manifest(folder_ / "step-00000010").run;
  in_another_process([&] {
    load(folder_ / "step-00000100", loop::Job{.models = {model_.get()}});
    go_on();
    save_step(20);
  });
  EXPECT_THAT(names(), ElementsAre("last", "lock", "step-00000020", "step-00000100"));
  EXPECT_EQ(read_manifest(folder_ / "step-00000020").run, run);
}

// Somebody removed one, and put another run's in its place, while this run lives.
TEST_F(RunsOfAFolder, ACheckpointThatWasExchangedIsNotTheRunsAnyMore) {
  const fs::path elsewhere = folder_ / "elsewhere";
  in_another_process([&] { save(elsewhere, 10, loop::Job{.models = {model_.get()}}); });
  const FolderLock lock(folder_);
  save_step(10);
  fs::remove_all(folder_ / "step-00000010");
  Warnings warnings;
  save_step(20);
  fs::rename(elsewhere / "step-00000010", folder_ / "step-00000010");
  for (const int64_t step : {30, 40}) save_step(step);
  EXPECT_THAT(names(), ElementsAre("elsewhere", "last", "lock", "step-00000010", "step-00000040"));
  EXPECT_EQ(warnings.said.size(), 1U);
}

class DamagedCheckpoints : public RunsOfAFolder {
 protected:
  void SetUp() override {
    RunsOfAFolder::SetUp();
    for (const int64_t step : {10, 20, 30}) save_step(step, {.keep_last = 3});
  }
  void damage(const std::string& name) const {
    const fs::path file = folder_ / name / kModelFile;
    std::string bytes = bytes_of(file);
    bytes.back() = static_cast<char>(bytes.back() ^ 1);
    write_bytes(file, bytes);
  }
  std::optional<fs::path> newest() {
    passed_over_.clear();
    return newest_whole(folder_, [this](const fs::path& path, const std::string& wrong) {
      EXPECT_THAT(wrong, HasSubstr(path.string()));
      passed_over_.push_back(path.filename());
    });
  }
  std::vector<std::string> passed_over_;
};

TEST_F(DamagedCheckpoints, GiveWayToTheNewestThatIsWhole) {
  EXPECT_EQ(newest(), folder_ / "step-00000030");
  EXPECT_TRUE(passed_over_.empty());
  damage("step-00000030");
  fs::remove(folder_ / "step-00000020" / kStateFile);
  EXPECT_EQ(newest(), folder_ / "step-00000010");
  EXPECT_THAT(passed_over_, ElementsAre("step-00000030", "step-00000020"));
  damage("step-00000010");
  EXPECT_THROW(newest(), DataError);
  EXPECT_EQ(newest_whole(folder_ / "step-00000010", [](auto&&...) {}), std::nullopt);
  for (const char* name : {"step-00000010", "step-00000020", "step-00000030"})
    fs::remove_all(folder_ / name);
  EXPECT_THROW(newest(), DataError) << "`last` names one that is gone";
}

TEST_F(DamagedCheckpoints, AreSoughtWithoutTheFileLastAndInTheirRunAlone) {
  save_in_another_run({90});
  write_bytes(folder_ / "last", names_to_text({"step-00000030", "step-00000020"}));
  damage("step-00000030");
  damage("step-00000020");
  EXPECT_EQ(newest(), folder_ / "step-00000010") << "of this run, though no file names it";
  write_bytes(folder_ / "last", "no names");
  EXPECT_EQ(newest(), folder_ / "step-00000090");
}

TEST_F(DamagedCheckpoints, AreSetAsideAndNeverRemoved) {
  damage("step-00000030");
  EXPECT_EQ(set_aside(folder_ / "step-00000030"), folder_ / "step-00000030.damaged");
  for (const int64_t step : {30, 40}) save_step(step);
  damage("step-00000040");
  set_aside(folder_ / "step-00000040");
  save_step(50);
  EXPECT_THAT(names(), ElementsAre("last", "lock", "step-00000030.damaged", "step-00000040.damaged",
                                   "step-00000050"));
}

// A file without permission may have sound bytes.
TEST_F(DamagedCheckpoints, AreNotThoseThatMayNotBeRead) {
  if (::geteuid() == 0) GTEST_SKIP() << "root may read everything";
  fs::permissions(folder_ / "step-00000030" / kModelFile, fs::perms::none);
  EXPECT_THROW(newest(), DataError);
  EXPECT_TRUE(passed_over_.empty());
}

// A run that saves meanwhile removes what `last` named a moment ago.
TEST_F(DamagedCheckpoints, OneThatIsRemovedWhileItIsReadIsReadAnew) {
  std::vector<std::string> read;
  read_current(folder_, [&](const fs::path& path) {
    read.push_back(path.filename());
    if (read.size() == 1) save_step(40);
    load(path);
  });
  EXPECT_THAT(read, ElementsAre("step-00000030", "step-00000040"));
  EXPECT_THROW(read_current(folder_ / "step-00000030", [](const fs::path& path) { load(path); }),
               DataError);
  damage("step-00000040");
  EXPECT_THROW(read_current(folder_, [](const fs::path& path) { load(path); }), DataError);
}

// The values of a piece that is summed and of the one that is written are the same.
TEST_F(RunsOfAFolder, ASaveBesideAThreadThatTrainsCanBeRead) {
#ifdef __SANITIZE_THREAD__
  GTEST_SKIP() << "TSan does not see that this race is what the test is about";
#endif
  Checkpoint training;
  training.model["w"] = at::zeros({1'000'000});
  std::atomic<bool> ends = false;
  std::thread trains([&] {
    auto* const values = training.model["w"].mutable_data_ptr<float>();
    for (float step = 0; !ends; ++step) std::fill_n(values, 1'000'000, step);
  });
  for (int64_t step = 0; step < 12; ++step) {
    save(folder_, step, training);
    EXPECT_NO_THROW(load(folder_)) << step;
  }
  ends = true;
  trains.join();
}

// The parent dies, and its child lives on.
TEST_F(RunsOfAFolder, AForkedProcessKeepsNoLock) {
  int ready[2], end[2];
  ASSERT_EQ(::pipe(ready), 0);
  ASSERT_EQ(::pipe(end), 0);
  const pid_t parent = ::fork();
  if (parent == 0) {
    const FolderLock lock(folder_);
    if (::fork() == 0) {
      ::close(end[1]);
      char none = 0;
      if (::write(ready[1], "x", 1) == 1) ::_exit(static_cast<int>(::read(end[0], &none, 1)));
    }
    ::pause();
  }
  char x = 0;
  ASSERT_EQ(::read(ready[0], &x, 1), 1);
  EXPECT_THROW(FolderLock lock(folder_), UsageError) << "the parent lives";
  ::kill(parent, SIGKILL);
  ::waitpid(parent, nullptr, 0);
  EXPECT_NO_THROW(FolderLock lock(folder_));
  for (const int descriptor : {ready[0], ready[1], end[0], end[1]}) ::close(descriptor);
}

// ulimit -v: what is missing is memory, and no file is damaged.
TEST_F(RunsOfAFolder, AFileThatNoAddressSpaceHoldsIsNotDamaged) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "a sanitizer takes address space of its own";
#endif
  Checkpoint large;
  large.model["w"] = at::zeros({16 << 20}, at::kByte);
  const fs::path saved = save(folder_, 1, large);
  in_another_process([&] {
    const rlimit none{.rlim_cur = 8 << 20, .rlim_max = 8 << 20};
    ::setrlimit(RLIMIT_AS, &none);
    try {
      map(saved);
    } catch (const TrainingError& error) {
      if (std::string(error.what()).find("address space") != std::string::npos) return;
      throw;
    }
    throw std::runtime_error("no error");
  });
}

}  // namespace
}  // namespace demi::checkpoint
