#include "lab/recipes/watch.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <map>
#include <sstream>
#include <thread>

namespace demi::train {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

TEST(ShowProgress, CountsWhatWasRightInThisEpochAndThenInTheTest) {
  std::ostringstream out;
  ShowProgress show(out, {.width = 200, .interactive = true}, c10::kCPU);
  const auto shown = [&] {
    const std::string text = out.str();
    out.str("");
    return text;
  };
  const auto step = [&](int64_t number, double accuracy, int64_t examples) {
    std::this_thread::sleep_for(std::chrono::milliseconds(110));  // as often as it redraws
    show.on_step({.step = number, .loss = 1, .accuracy = accuracy}, examples);
    return shown();
  };
  for (int64_t epoch = 1; epoch <= 2; ++epoch) {
    show.on_epoch_begin(epoch, 2, 2);
    EXPECT_THAT(step(2 * epoch - 1, 0.5, 4), HasSubstr("accuracy 50.00 %  (2/4)"));
    EXPECT_THAT(step(2 * epoch, 1, 10), HasSubstr("accuracy 80.00 %  (8/10)"));
    EpochRecord record{.epoch = epoch, .examples = 10, .accuracy = 0.8};
    if (epoch == 2) record.validation = Evaluation{.accuracy = 0.25, .examples = 1200};
    show.on_epoch_end(record);
    EXPECT_THAT(shown(), HasSubstr(epoch == 2 ? "25.00 %  (300/1,200)" : "80.00 %  (8/10)"));
  }
}

TEST(ShowProgress, ALossWithoutAccuracyHasNoCounts) {
  std::ostringstream out;
  ShowProgress show(out, {.width = 200, .interactive = true}, c10::kCPU);
  show.on_epoch_begin(1, 1, 1);
  show.on_step({.step = 1, .loss = 1}, 4);
  show.on_epoch_end({.epoch = 1, .examples = 4});
  EXPECT_THAT(out.str(), Not(HasSubstr("accuracy")));
  EXPECT_THAT(out.str(), Not(HasSubstr("(")));
}

TEST(ShowProgress, RunsThatTakeTurnsGoOnWhereTheyWere) {
  std::ostringstream out;
  ShowProgress show(out, {.width = 200, .interactive = true}, c10::kCPU);
  for (const char* run : {"fp32", "bf16"}) {
    show.set_run(run);
    show.on_epoch_begin(1, 1, 2);
    show.on_step({.step = 1, .loss = 1, .accuracy = 0.5, .seconds = 2}, 4);
  }
  for (const char* run : {"fp32", "bf16"}) {
    show.set_run(run);
    out.str("");
    std::this_thread::sleep_for(std::chrono::milliseconds(110));  // as often as it redraws
    show.on_step({.step = 2, .loss = 1, .accuracy = 1, .seconds = 2}, 8);
    EXPECT_THAT(out.str(), HasSubstr(run));
    EXPECT_THAT(out.str(), HasSubstr("accuracy 75.00 %  (6/8)"));
    EXPECT_THAT(out.str(), HasSubstr("2.00 images/s")) << "the other's time is not its own";
  }
}

TEST(FileMetrics, RunsThatTakeTurnsHaveLinesAndEventsOfTheirOwn) {
  const auto folder =
      std::filesystem::temp_directory_path() / ("demi-watch-" + std::to_string(getpid()));
  std::filesystem::create_directories(folder);
  {
    FileMetrics metrics(folder);
    for (int64_t turn = 1; turn <= 2; ++turn) {
      for (const char* run : {"fp32", "fp16:scale=128"}) {
        metrics.set_run(run);
        const int64_t step = run[2] == '3' ? turn : 10 * turn;
        metrics.on_step({.step = step, .loss = 1}, 4);
        if (turn == 2) metrics.on_epoch_end({.epoch = 1, .examples = 4});
      }
    }
  }
  std::vector<std::string> epochs;
  for (const auto& line : report::read_metrics(folder / "metrics.jsonl")) {
    const std::map<std::string, report::MetricValue> fields(line.begin(), line.end());
    if (fields.contains("epoch_loss"))
      epochs.push_back(std::get<std::string>(fields.at("run")) + " " +
                       std::to_string(std::get<int64_t>(fields.at("step"))));
  }
  EXPECT_EQ(epochs, (std::vector<std::string>{"fp32 2", "fp16:scale=128 20"}));
  for (const char* run : {"fp32", "fp16-scale-128"}) {
    const std::filesystem::directory_iterator events(folder / run);
    EXPECT_EQ(std::distance(begin(events), end(events)), 1) << "one file of events a run";
  }
  std::filesystem::remove_all(folder);
}

}  // namespace
}  // namespace demi::train
