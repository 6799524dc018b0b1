// What is filed: reports, run folders, metrics.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cmath>
#include <csignal>
#include <fstream>
#include <iterator>
#include <limits>

#include "demi/core/error.h"
#include "lab/report/file.h"
#include "lab/report/metrics_log.h"
#include "lab/report/run_folder.h"

namespace demi::report {
namespace {

namespace fs = std::filesystem;

std::string content(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

void put(const fs::path& path, const std::string& text) {
  std::ofstream(path, std::ios::binary) << text;
}

std::size_t entries(const fs::path& folder) {
  return static_cast<std::size_t>(
      std::distance(fs::directory_iterator(folder), fs::directory_iterator()));
}

/// Files of this process end at `bytes`: what a full disk does to `write`, without one.
class FileSizeLimit {
 public:
  explicit FileSizeLimit(rlim_t bytes) : handler_(std::signal(SIGXFSZ, SIG_IGN)) {
    getrlimit(RLIMIT_FSIZE, &before_);
    const rlimit limit{bytes, before_.rlim_max};
    setrlimit(RLIMIT_FSIZE, &limit);
  }
  ~FileSizeLimit() {
    setrlimit(RLIMIT_FSIZE, &before_);
    std::signal(SIGXFSZ, handler_);
  }

 private:
  rlimit before_{};
  void (*handler_)(int);
};

class Files : public testing::Test {
 protected:
  void SetUp() override {
    folder = fs::path(testing::TempDir()) /
             ("demi_files_" + std::to_string(getpid()) +
              testing::UnitTest::GetInstance()->current_test_info()->name());
    fs::remove_all(folder);
    fs::create_directories(folder);
  }
  void TearDown() override { fs::remove_all(folder); }
  fs::path folder;
};

TEST_F(Files, AReportIsReplacedAsAWhole) {
  const fs::path path = folder / "report.html";
  write_file_atomically(path, "first");
  write_file_atomically(path, "second");
  EXPECT_EQ(content(path), "second");
  EXPECT_EQ(entries(folder), 1U);
}

TEST_F(Files, AFullDiskLeavesTheOldReportAndNoTemporary) {
  const fs::path path = folder / "report.html";
  write_file_atomically(path, "old");
  {
    FileSizeLimit limit(4096);
    EXPECT_THROW(write_file_atomically(path, std::string(100'000, 'x')), TrainingError);
  }
  EXPECT_EQ(content(path), "old");
  EXPECT_EQ(entries(folder), 1U);
}

TEST_F(Files, AFolderThatIsMissingIsATrainingError) {
  EXPECT_THROW(write_file_atomically(folder / "none" / "report.html", "x"), TrainingError);
}

TEST_F(Files, RunsAreNumberedAfterTheHighest) {
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

TEST_F(Files, ARunThatCannotBeSavedIsRefusedBeforeTraining) {
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

TEST_F(Files, NamesThatLeaveTheFolderAreRefused) {
  for (const char* name : {"", "../up", "a/b", ".hidden", "a b", "x\n"}) {
    EXPECT_THROW(RunFolder::create(name, folder), UsageError) << name;
  }
}

TEST_F(Files, TheRootIsGivenElseTheEnvironmentsElseRuns) {
  ::unsetenv("DEMI_RUNS");
  EXPECT_EQ(runs_root(), "runs");
  ::setenv("DEMI_RUNS", "/elsewhere", 1);
  EXPECT_EQ(runs_root(), "/elsewhere");
  EXPECT_EQ(runs_root("given"), "given");
  ::unsetenv("DEMI_RUNS");
}

TEST_F(Files, MetricsComeBackAsTheyWereWritten) {
  const fs::path path = folder / "metrics.jsonl";
  const double inf = std::numeric_limits<double>::infinity();
  MetricsLog log(path);
  log.write({{"step", std::int64_t{1}},
             {"loss", 0.5},
             {"run", std::string("b\"16")},
             {"skipped", false}});
  log.write({{"step", std::int64_t{2}}, {"loss", std::nan("")}, {"norm", -inf}});
  log.sync();
  EXPECT_EQ(content(path),
            "{\"step\":1,\"loss\":0.5,\"run\":\"b\\\"16\",\"skipped\":false}\n"
            "{\"step\":2,\"loss\":null,\"norm\":null,\"non_finite\":{\"loss\":\"nan\",\"norm\":\"-"
            "inf\"}}\n");
  const std::vector<MetricFields> lines = read_metrics(path);
  ASSERT_EQ(lines.size(), 2U);
  EXPECT_EQ(std::get<std::string>(lines[0][2].second), "b\"16");
  EXPECT_TRUE(std::isnan(std::get<double>(lines[1][1].second)));
  EXPECT_EQ(std::get<double>(lines[1][2].second), -inf);
}

TEST_F(Files, ALineCutOffByACrashIsRemovedBeforeTheNext) {
  const fs::path path = folder / "metrics.jsonl";
  put(path, "{\"step\":1}\n{\"st");
  EXPECT_EQ(read_metrics(path).size(), 1U);
  MetricsLog(path).write({{"step", std::int64_t{2}}});
  EXPECT_EQ(content(path), "{\"step\":1}\n{\"step\":2}\n");
}

TEST_F(Files, AFullDiskLeavesWholeLinesAndLosesNothing) {
  const fs::path path = folder / "metrics.jsonl";
  MetricsLog log(path, std::chrono::hours(1));
  log.write({{"step", std::int64_t{1}}});
  log.flush();
  log.write({{"text", std::string(5000, 'x')}});
  {
    FileSizeLimit limit(4096);
    EXPECT_THROW(log.flush(), TrainingError);
  }
  EXPECT_EQ(content(path), "{\"step\":1}\n");
  log.flush();
  EXPECT_EQ(read_metrics(path).size(), 2U);
}

TEST_F(Files, ARunThatGoesOnForgetsWhatItWillDoAgain) {
  const fs::path path = folder / "metrics.jsonl";
  put(path, "{\"step\":1}\n{\"epoch\":1}\n{\"step\":2}\n{\"step\":3}\n");
  forget_metrics_after(path, "step", 2);
  EXPECT_EQ(content(path), "{\"step\":1}\n{\"epoch\":1}\n{\"step\":2}\n");
  forget_metrics_after(folder / "none", "step", 2);
}

TEST_F(Files, DamagedMetricsNameTheirLine) {
  put(folder / "metrics.jsonl", "{\"step\":1}\nnot json\n");
  try {
    read_metrics(folder / "metrics.jsonl");
    FAIL();
  } catch (const DataError& error) {
    EXPECT_NE(std::string(error.what()).find("line 2"), std::string::npos) << error.what();
  }
  EXPECT_THROW(read_metrics(folder / "none"), DataError);
}

}  // namespace
}  // namespace demi::report
