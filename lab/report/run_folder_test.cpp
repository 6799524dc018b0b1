#include "lab/report/run_folder.h"

#include <limits>

#include "demi/core/error.h"
#include "lab/report/files_testing.h"

namespace demi::report {
namespace {

using RunFolderTest = Files;

TEST_F(RunFolderTest, RunsAreNumberedAfterTheHighest) {
  EXPECT_EQ(RunFolder::create("fashion-cnn", folder).path().filename(), "fashion-cnn-001");
  fs::create_directory(folder / "fashion-cnn-041");
  fs::create_directory(folder / "fashion-cnn-x99");
  fs::create_directory(folder / "fashion-900");
  EXPECT_EQ(RunFolder::create("fashion-cnn", folder).path().filename(), "fashion-cnn-042");
  fs::create_directory(folder / "fashion-cnn-999");
  const RunFolder last = RunFolder::create("fashion-cnn", folder);
  EXPECT_EQ(last.path().filename(), "fashion-cnn-1000");
  EXPECT_TRUE(fs::is_empty(last.path()));
  EXPECT_EQ(last.file("report.html"), last.path() / "report.html");
  EXPECT_EQ(RunFolder::open(last.path()).path(), last.path());
}

TEST_F(RunFolderTest, TheNewestIsTheOneOfTheHighestNumber) {
  for (const char* name : {"mlp-009", "mlp-010", "mlp-1000", "mlp-x", "mlp-cnn-2000", "other-3000"})
    fs::create_directory(folder / name);
  EXPECT_EQ(run_folders("mlp", folder),
            (std::vector<fs::path>{folder / "mlp-1000", folder / "mlp-010", folder / "mlp-009"}));
  EXPECT_TRUE(run_folders("mlp", folder / "none").empty());
}

TEST_F(RunFolderTest, ARunThatCannotBeSavedIsRefusedBeforeTraining) {
  EXPECT_THROW(RunFolder::create("mlp", folder, std::numeric_limits<std::uint64_t>::max()),
               TrainingError);
  EXPECT_EQ(entries(folder), 0U);  // and nothing is left behind
  {
    FileSizeLimit limit(1);
    EXPECT_THROW(RunFolder::create("mlp", folder), TrainingError);
  }
  EXPECT_EQ(entries(folder), 0U);
  put(folder / "file", "");
  EXPECT_THROW(RunFolder::create("mlp", folder / "file"), TrainingError);
  EXPECT_THROW(RunFolder::open(folder / "none"), DataError);
}

TEST_F(RunFolderTest, NamesThatLeaveTheFolderAreRefused) {
  for (const char* name : {"", "../up", "a/b", ".hidden", "a b", "x\n"}) {
    EXPECT_THROW(RunFolder::create(name, folder), UsageError) << name;
  }
}

TEST_F(RunFolderTest, TheRootIsGivenElseTheEnvironmentsElseRuns) {
  ::unsetenv("DEMI_RUNS");
  EXPECT_EQ(runs_root(), "runs");
  ::setenv("DEMI_RUNS", "/elsewhere", 1);
  EXPECT_EQ(runs_root(), "/elsewhere");
  EXPECT_EQ(runs_root("given"), "given");
  ::unsetenv("DEMI_RUNS");
}

}  // namespace
}  // namespace demi::report
