#include "lab/recipes/step_lines.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>

#include <cmath>
#include <fstream>
#include <limits>
#include <memory>
#include <sstream>
#include <utility>

#include "demi/checkpoint/checkpoint.h"
#include "demi/core/error.h"
#include "lab/recipes/observer_testing.h"
#include "lab/recipes/run.h"
#include "lab/recipes/small_mlp_testing.h"
#include "lab/results/watch.h"
#include "lab/settings/resolved.h"

namespace demi::recipes {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

class StepLinesFolder : public ::testing::Test {
 protected:
  StepLinesFolder() {
    std::string pattern = (fs::temp_directory_path() / "demi-lines-XXXXXX").string();
    folder_ = mkdtemp(pattern.data());
  }
  ~StepLinesFolder() override { fs::remove_all(folder_); }
  fs::path metrics() const { return folder_ / "metrics.jsonl"; }
  std::string content() const {
    std::ostringstream text;
    text << std::ifstream(metrics(), std::ios::binary).rdbuf();
    return text.str();
  }
  void put(const std::string& text) const { std::ofstream(metrics(), std::ios::binary) << text; }

  fs::path folder_;
};

bool same_step(const train::StepMetrics& a, const train::StepMetrics& b) {
  const auto number = [](double x, double y) { return x == y || (std::isnan(x) && std::isnan(y)); };
  return a.epoch == b.epoch && a.step == b.step && number(a.loss, b.loss) &&
         a.accuracy == b.accuracy && a.learning_rate == b.learning_rate &&
         a.loss_scale == b.loss_scale && a.grad_norm.has_value() == b.grad_norm.has_value() &&
         number(a.grad_norm.value_or(0), b.grad_norm.value_or(0)) && a.skipped == b.skipped &&
         a.seconds == b.seconds && a.data_seconds == b.data_seconds;
}

// Odd ones among them.
std::vector<train::StepMetrics> twelve_steps() {
  std::vector<train::StepMetrics> steps;
  for (int64_t i = 1; i <= 12; ++i)
    steps.push_back({.epoch = 1 + i / 5,
                     .step = i,
                     .loss = 1.0 / static_cast<double>(3 * i),
                     .learning_rate = 0.1,
                     .seconds = 1e-7 * static_cast<double>(i)});
  steps[1].accuracy = 0.1;
  steps[2].loss = std::nan("");
  steps[2].skipped = true;
  steps[3].loss = -std::numeric_limits<double>::infinity();
  steps[4].grad_norm = std::numeric_limits<double>::infinity();
  steps[5].grad_norm = std::nan("");
  steps[6].loss_scale = 65536;
  steps[7].loss = 2;
  return steps;
}

class StepLinesOfAFile : public StepLinesFolder {
 protected:
  /// Two runs in turn, with the ends of epochs between their steps.
  StepLinesOfAFile() {
    results::FileMetrics files(folder_);
    for (const train::StepMetrics& step : steps_)
      for (const char* run : {"fp32", "bf16"}) {
        files.set_run(run);
        train::StepMetrics one = step;
        if (run[0] == 'b') one.loss += 1;
        files.on_step(one, 4);
        if (step.step % 5 == 4) files.on_epoch_end({.epoch = one.epoch, .examples = 4});
      }
    recorded_ = files.keep_steps("fp32");
  }
  EarlierSteps read(int64_t end = 10) const {
    return read_earlier_steps(metrics(), recorded_, end);
  }
  std::string changed(const std::string& before, const std::string& after) const {
    std::string text = content();
    text.replace(text.find(before), before.size(), after);
    return text;
  }

  std::vector<train::StepMetrics> steps_ = twelve_steps();
  StepLines recorded_;
};

TEST_F(StepLinesOfAFile, GiveTheStepsOfTheirRunBack) {
  const EarlierSteps read_back = read();
  EXPECT_EQ(read_back.wrong, "");
  ASSERT_EQ(read_back.steps.size(), 9U);
  for (std::size_t i = 0; i < 9; ++i) EXPECT_TRUE(same_step(read_back.steps[i], steps_[i])) << i;
  EXPECT_THAT(read(1).steps, IsEmpty());
  EXPECT_EQ(read(1).wrong, "");
}

// The process was killed after it had written more.
TEST_F(StepLinesOfAFile, LaterLinesDoNotCount) {
  std::ofstream(metrics(), std::ios::app)
      << "{\"run\":\"fp32\",\"epoch\":3,\"step\":13,\"loss\":1.0,\"learning_rate\":0.1,"
         "\"skipped\":false,\"seconds\":0.1,\"data_seconds\":0.0}\n{\"run\":\"fp3";
  EXPECT_EQ(read().wrong, "");
  EXPECT_EQ(read().steps.size(), 9U);
}

TEST_F(StepLinesOfAFile, AFileThatWasChangedGivesNoneAndSaysWhatWasSeen) {
  const std::string whole = content(),
                    other = changed("\"learning_rate\":0.1", "\"learning_rate\":0.2");
  ASSERT_EQ(other.size(), whole.size());
  const std::string expected = std::to_string(recorded_.bytes) + " bytes";
  const auto expect_refused = [&](const std::string& text, const std::string& how) {
    put(text);
    EXPECT_THAT(read().steps, IsEmpty()) << how;
    EXPECT_THAT(read().wrong, AllOf(HasSubstr("steps 1 to 12"), HasSubstr("and were " + expected)))
        << how;
  };
  expect_refused(whole.substr(0, whole.size() / 2), "cut");
  expect_refused(whole.substr(whole.find('\n') + 1), "without its first line");
  expect_refused(other, "another number");
  expect_refused("", "empty");
  put(whole);
  put(changed("\"run\":\"bf16\"", "\"run\":\"b\""));
  EXPECT_EQ(read().wrong, "") << "another run's line";
  fs::remove(metrics());
  EXPECT_THAT(read().wrong, HasSubstr("cannot be read"));
}

TEST(StepLines, AreNumbersOfACheckpoint) {
  const StepLines lines{.first = 3, .last = 12, .bytes = 4'000'000'000, .checksum = 0xFFFFFFFF};
  EXPECT_EQ(StepLines::in_numbers(lines.to_numbers()), lines);
  EXPECT_EQ(StepLines::in_numbers({{"peak_bytes", 1}}), std::nullopt);
  StateDict numbers = lines.to_numbers();
  numbers["step_lines.crc32c"] = 0x1p32;
  EXPECT_THROW(StepLines::in_numbers(numbers), UsageError);
}

/// A run of 24 steps whose checkpoints hold the last 3.
class RunWithStepLines : public StepLinesFolder {
 protected:
  RunWithStepLines() {
    config_.epochs = 3;
    config_.checkpoint_every = "0";
    workload_ = workload::load_workload(config_, c10::kCPU);
  }
  struct KeepLines : testing::Watch {
    explicit KeepLines(results::FileMetrics& to) : files(to) {}
    void on_resume(const settings::RunSpec&, const train::History& history) override {
      files.resume(history);
    }
    StepLines keep_steps(const std::string& label) override { return files.keep_steps(label); }
    results::FileMetrics& files;
  };

  RunResult now(const fs::path& folder, int64_t until, bool resume, const fs::path& from = {}) {
    const auto files = std::make_shared<results::FileMetrics>(folder);
    files->set_run("fp32");
    JobOptions options{.folder = folder, .checkpoints = folder / "checkpoints"};
    options.resume = resume;
    options.resume_from = from;
    options.history_steps = 3;
    options.callbacks = {files};
    KeepLines watch(*files);
    watch.stops = [&, asked = 0]() mutable { return ++asked > until; };
    options.observer = &watch;
    RunResult result =
        run(settings::resolve(config_, settings::parse_run("fp32")), workload_, options);
    files->flush();
    notes_.insert(notes_.end(), watch.notes.begin(), watch.notes.end());
    return result;
  }
  static std::vector<double> losses(const RunResult& result) {
    std::vector<double> all;
    for (const train::StepMetrics& step : result.history.steps) all.push_back(step.loss);
    return all;
  }

  std::vector<std::string> notes_;
  settings::Config config_ = small_mlp();
  workload::Workload workload_;
};

TEST_F(RunWithStepLines, EndsWithTheHistoryOfTheUnbrokenOne) {
  const fs::path unbroken = folder_ / "unbroken", broken = folder_ / "broken",
                 other = folder_ / "other";
  for (const fs::path& one : {unbroken, broken, other}) fs::create_directories(one);
  const std::vector<double> expected = losses(now(unbroken, 1000, false));
  ASSERT_EQ(expected.size(), 24U);
  now(broken, 10, false);
  const checkpoint::Checkpoint saved = checkpoint::load(broken);
  EXPECT_EQ(saved.state.at("history/steps.loss").numel(), 3);
  const fs::path middle = checkpoint::find(broken);
  // From the checkpoint, in a folder of its own; and in the run's folder, in two parts.
  EXPECT_EQ(losses(now(other, 1000, false, middle)), expected);
  now(broken, 7, true);
  EXPECT_EQ(losses(now(broken, 1000, true)), expected);
  EXPECT_THAT(notes_, IsEmpty());
}

TEST_F(RunWithStepLines, WithChangedLinesTrainsOnAndSaysWhichStepsAreMissing) {
  const fs::path folder = folder_ / "run", whole = folder_ / "whole";
  for (const fs::path& one : {folder, whole}) fs::create_directories(one);
  std::vector<double> expected = losses(now(whole, 1000, false));
  now(folder, 10, false);
  const int64_t stopped =
      static_cast<int64_t>(checkpoint::load(folder).numbers.at("progress").at("step"));
  fs::resize_file(folder / "metrics.jsonl", 300);
  const RunResult result = now(folder, 5, true);
  ASSERT_EQ(notes_.size(), 1U);
  EXPECT_THAT(notes_.front(),
              AllOf(HasSubstr("metrics.jsonl"), HasSubstr("bytes with the checksum"),
                    HasSubstr("the steps from " + std::to_string(stopped - 2))));
  // What is missing stays missing, and is said once: the file is whole from there on.
  expected.erase(expected.begin(), expected.begin() + stopped - 3);
  EXPECT_EQ(losses(now(folder, 1000, true)), expected);
  EXPECT_EQ(notes_.size(), 1U);
}

}  // namespace
}  // namespace demi::recipes
