#include "lab/results/watch.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "demi/scaler/grad_scaler.h"
#include "demi/train/names.h"
#include "demi/train/network.h"

namespace demi::results {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

/// A clock that the test sets.
class GivenClock {
 public:
  report::ProgressOptions options() {
    return {.clock = [this] { return now_; }};
  }
  /// Longer than the least time between two lines on a terminal.
  void pass() { now_ += 2 * report::ProgressOptions().redraw; }

 private:
  report::ProgressOptions::Seconds now_{1};
};

TEST(ShowProgress, CountsWhatWasRightInThisEpochAndThenInTheTest) {
  std::ostringstream out;
  GivenClock clock;
  ShowProgress show(out, {.width = 200, .interactive = true}, c10::kCPU, clock.options());
  const auto shown = [&] {
    const std::string text = out.str();
    out.str("");
    return text;
  };
  const auto step = [&](int64_t number, double accuracy, int64_t examples) {
    clock.pass();
    show.on_step({.step = number, .loss = 1, .accuracy = accuracy}, examples);
    return shown();
  };
  for (int64_t epoch = 1; epoch <= 2; ++epoch) {
    show.on_epoch_begin(epoch, 2, 2);
    EXPECT_THAT(step(2 * epoch - 1, 0.5, 4), HasSubstr("accuracy 50.00 %  (2/4)"));
    EXPECT_THAT(step(2 * epoch, 1, 10), HasSubstr("accuracy 80.00 %  (8/10)"));
    train::EpochRecord record{.epoch = epoch, .examples = 10, .accuracy = 0.8};
    if (epoch == 2) record.validation = train::Evaluation{.accuracy = 0.25, .examples = 1200};
    show.on_epoch_end(record);
    EXPECT_THAT(shown(), HasSubstr(epoch == 2 ? "25.00 %  (300/1,200)" : "80.00 %  (8/10)"));
  }
}

// The figures of the test stood where those of training had been, without a word.
TEST(ShowProgress, AnEpochEndsWithALineOfTrainingAndOneOfTheTest) {
  std::ostringstream out;
  ShowProgress show(out, {}, c10::kCPU);
  show.set_keeps_best(true);
  const auto end_of = [&](int64_t epoch, double test_loss) {
    show.on_epoch_begin(epoch, 3, 1);
    show.on_step({.step = epoch, .loss = 9}, 4);
    out.str("");
    train::EpochRecord record{.epoch = epoch, .examples = 4, .loss = 3.19, .accuracy = 0.5};
    record.validation =
        train::Evaluation{.loss = test_loss, .metrics = {{"top5_accuracy", 0.75}}, .examples = 8};
    show.on_epoch_end(record);
    return out.str();
  };
  const std::string first = end_of(1, 7.5), second = end_of(2, 8.5), third = end_of(3, 6.5);
  EXPECT_EQ(std::count(first.begin(), first.end(), '\n'), 2) << first;
  const std::string training = first.substr(0, first.find('\n')),
                    test = first.substr(first.find('\n'));
  EXPECT_THAT(training, HasSubstr("epoch 1/3  training"));
  EXPECT_THAT(training, HasSubstr("loss 3.1900  accuracy 50.00 %  (2/4)"));
  EXPECT_THAT(test, HasSubstr("epoch 1/3  test"));
  EXPECT_THAT(test, HasSubstr("loss 7.5000"));
  EXPECT_THAT(test, HasSubstr("top5_accuracy 75.00 %"));
  EXPECT_THAT(test, HasSubstr("saved as the best"));
  EXPECT_THAT(second, Not(HasSubstr("best")));
  EXPECT_THAT(third, HasSubstr("saved as the best"));
}

// Of 4 examples with 3 classes, the class of 3 is among the 2 likeliest.
TEST(ShowProgress, TheShareAmongTheLikeliestRunsThroughTheEpoch) {
  std::ostringstream out;
  ShowProgress show(out, {}, c10::kCPU);
  show.set_top_k(2);
  const std::vector<loop::NamedInput> inputs{
      {"target", at::tensor(std::vector<int64_t>{0, 1, 2, 0})}};
  const at::Tensor logits = at::tensor(std::vector<double>{3, 2, 1}).repeat({4, 1});
  torch::nn::Module module;
  const std::vector<torch::optim::Optimizer*> optimizers;
  const GradScaler scaler;
  show.on_epoch_begin(1, 1, 2);
  for (int step = 0; step < 2; ++step)
    show.after_forward({.module = module,
                        .optimizers = optimizers,
                        .scaler = scaler,
                        .precision = parse_precision("fp32"),
                        .inputs = inputs},
                       logits);
  show.on_epoch_end({.epoch = 1, .examples = 8, .loss = 1, .accuracy = 0.5});
  EXPECT_THAT(out.str(), HasSubstr("accuracy 50.00 %  (4/8)  top-2 75.00 %"));
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

TEST(ShowProgress, TokensHaveTheirShareOfThePeak) {
  std::ostringstream out;
  GivenClock clock;
  ShowProgress show(out, {.width = 200, .interactive = true}, c10::kCPU, clock.options());
  show.set_items("tokens", 64);
  const auto line = [&] {
    show.on_epoch_begin(1, 1, 1);
    out.str("");
    clock.pass();
    show.on_step({.step = 1, .loss = 1, .seconds = 2}, 10);
    return out.str();
  };
  EXPECT_THAT(line(), Not(HasSubstr("FLOPs")));
  show.set_flops(5e6, 8e9);
  EXPECT_THAT(line(), HasSubstr("320 tokens/s  20.0 % of peak FLOPs"));
}

TEST(ShowProgress, NoTimeIsLeftAfterTheLastStep) {
  std::ostringstream out;
  GivenClock clock;
  ShowProgress show(out, {.width = 200, .interactive = true}, c10::kCPU, clock.options());
  const auto line = [&] {
    show.on_epoch_begin(1, 1, 1'000'000);
    out.str("");
    clock.pass();
    show.on_step({.step = 1, .loss = 1, .seconds = 2}, 4);
    return out.str();
  };
  EXPECT_THAT(line(), Not(HasSubstr("0:00 left")));
  show.set_last_step(1);
  EXPECT_THAT(line(), HasSubstr("0:00 left"));
}

TEST(ShowProgress, RunsThatTakeTurnsGoOnWhereTheyWere) {
  std::ostringstream out;
  GivenClock clock;
  ShowProgress show(out, {.width = 200, .interactive = true}, c10::kCPU, clock.options());
  for (const char* run : {"fp32", "bf16"}) {
    show.set_run(run);
    show.on_epoch_begin(1, 1, 2);
    show.on_step({.step = 1, .loss = 1, .accuracy = 0.5, .seconds = 2}, 4);
  }
  for (const char* run : {"fp32", "bf16"}) {
    show.set_run(run);
    out.str("");
    clock.pass();
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
  for (const auto& [number, line] : report::read_metrics(folder / "metrics.jsonl").lines) {
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

TEST(ShowProgress, ARunThatGoesOnBeginsAtItsStep) {
  std::ostringstream out;
  GivenClock clock;
  ShowProgress show(out, {.width = 200, .interactive = true}, c10::kCPU, clock.options());
  train::History history;
  for (int64_t step = 1; step <= 7; ++step)  // epochs of 5 steps
    history.steps.push_back(
        {.epoch = step <= 5 ? 1 : 2, .step = step, .loss = 1, .accuracy = 0.5, .seconds = 2});
  history.epochs.push_back({.epoch = 1});
  show.resume(history, 4);
  show.on_epoch_begin(2, 3, 5);
  EXPECT_THAT(out.str(), HasSubstr("epoch 2/3"));
  EXPECT_THAT(out.str(), HasSubstr(" 40 %"));
  out.str("");
  clock.pass();
  show.on_step({.epoch = 2, .step = 8, .loss = 1, .accuracy = 1, .seconds = 2}, 12);
  EXPECT_THAT(out.str(), HasSubstr(" 60 %"));
  EXPECT_THAT(out.str(), HasSubstr("accuracy 66.67 %  (8/12)"));
  EXPECT_THAT(out.str(), HasSubstr("2.00 images/s"));
  out.str("");
  show.on_epoch_begin(3, 3, 5);
  EXPECT_THAT(out.str(), HasSubstr("epoch 3/3"));
  EXPECT_THAT(out.str(), HasSubstr("  0 %")) << "the next one begins anew";
}

class ResumedMetrics : public ::testing::Test {
 protected:
  ResumedMetrics()
      : folder_(std::filesystem::temp_directory_path() /
                ("demi-resumed-" + std::to_string(getpid()))) {
    std::filesystem::remove_all(folder_);
    std::filesystem::create_directories(folder_);
  }
  ~ResumedMetrics() override { std::filesystem::remove_all(folder_); }

  static train::StepMetrics step(int64_t number) {
    return {.epoch = (number + 1) / 2, .step = number, .loss = 1.0 / static_cast<double>(number)};
  }
  static train::EpochRecord epoch(int64_t number) {
    return {.epoch = number, .examples = 8, .loss = 0.5};
  }

  // The steps up to `steps`, two an epoch, and the ends of the first `epochs`.
  static train::History history(int64_t steps, int64_t epochs) {
    train::History history;
    for (int64_t i = 1; i <= steps; ++i) history.steps.push_back(step(i));
    for (int64_t i = 1; i <= epochs; ++i) history.epochs.push_back(epoch(i));
    return history;
  }

  static void tell(FileMetrics& metrics, int64_t first, int64_t last) {
    for (int64_t i = first; i <= last; ++i) {
      metrics.on_step(step(i), 4);
      if (i % 2 == 0) metrics.on_epoch_end(epoch(i / 2));
    }
  }

  std::string lines(const std::string& run) const {
    std::ifstream file(folder_ / "metrics.jsonl");
    std::string all;
    for (std::string line; std::getline(file, line);)
      if (line.find("\"" + run + "\"") != std::string::npos) all += line + "\n";
    return all;
  }

  // Step and tag of each event that TensorBoard shows of the run, a line each: it reads the files
  // in the order of their names, and drops at a START what came before of that step and later ones.
  std::vector<std::string> events(const std::string& run) const {
    std::multimap<int64_t, std::string> shown;
    const std::filesystem::directory_iterator folder(folder_ / run);
    const std::set<std::filesystem::path> files(begin(folder), end(folder));
    for (const std::filesystem::path& path : files) {
      std::ifstream file(path, std::ios::binary);
      const std::string all{std::istreambuf_iterator<char>(file), {}};
      // A record: length (8 bytes), its checksum, an event, its checksum. An event begins with its
      // time (9 bytes) and, as a byte here, its step behind 0x10; 0x2a opens a summary, whose tag
      // comes first, 0x3a a START.
      for (std::size_t at = 0; at < all.size();) {
        const std::size_t length =
            static_cast<unsigned char>(all[at]) + 256U * static_cast<unsigned char>(all[at + 1]);
        const std::string event = all.substr(at + 12, length);
        at += 12 + length + 4;
        if (event[9] != 0x10) continue;  // the file's version
        const int64_t step = event[10];
        if (event[11] == 0x3a) shown.erase(shown.lower_bound(step), shown.end());
        std::size_t tag = event.find('\x0a', 13);  // the summary's value, behind its length
        tag = event.find('\x0a', tag + 2);         // the value's tag, likewise
        if (event[11] == 0x2a)
          shown.emplace(step, event.substr(tag + 2, static_cast<std::size_t>(event[tag + 1])));
      }
    }
    std::vector<std::string> lines;
    for (const auto& [step, tag] : shown) lines.push_back(std::to_string(step) + " " + tag);
    std::ranges::sort(lines);
    return lines;
  }

  std::filesystem::path folder_;
};

// Killed after 7 steps, with a checkpoint of an earlier step: from before the end of its epoch, or
// from after it.
TEST_F(ResumedMetrics, AreThoseOfAnUnbrokenRun) {
  {
    FileMetrics metrics(folder_);
    metrics.set_run("unbroken");
    tell(metrics, 1, 8);
  }
  std::string expected = lines("unbroken");
  struct Case {
    int64_t steps, epochs;
  };
  for (const auto& [steps, epochs] : {Case{5, 2}, Case{6, 2}, Case{6, 3}, Case{0, 0}, Case{7, 3}}) {
    const std::string run = "run" + std::to_string(steps) + std::to_string(epochs),
                      other = "other" + run;
    {
      FileMetrics metrics(folder_);
      for (int64_t i = 1; i <= 7; ++i)
        for (const std::string& name : {run, other}) {
          metrics.set_run(name);
          tell(metrics, i, i);
        }
    }
    const std::string of_other = lines(other);
    {
      FileMetrics metrics(folder_);
      metrics.set_run(run);
      metrics.resume(history(steps, epochs));
      if (steps == 6 && epochs == 2) metrics.on_epoch_end(epoch(3));
      tell(metrics, steps + 1, 8);
    }
    std::string seen = lines(run);
    for (std::size_t at = 0; (at = seen.find(run, at)) != std::string::npos;)
      seen.replace(at, run.size(), "unbroken");
    EXPECT_EQ(seen, expected) << run;
    EXPECT_EQ(lines(other), of_other) << "another run's lines stay";
  }
}

TEST_F(ResumedMetrics, KeepTheMonitoredStepThatARunResumesAt) {
  const auto train = [](FileMetrics& metrics, int64_t first, int64_t last) {
    for (int64_t i = first; i <= last; ++i) {
      metrics.on_step(step(i), 4);
      monitor::StepHealth health{.epoch = (i + 1) / 2, .step = i, .loss_scale = 1024};
      health.layers = {{.name = "fc", .update_ratio = 0.25, .unchanged = 0.5}};
      health.layers[0].weight_gradients.counts[100] = 4;
      if (i % 2 == 1) metrics.write(health);
      if (i % 2 == 0) metrics.on_epoch_end(epoch(i / 2));
    }
  };
  {
    FileMetrics metrics(folder_);
    metrics.set_run("unbroken");
    train(metrics, 1, 8);
  }
  const std::vector<std::string> expected = events("unbroken");
  for (const int64_t stopped : {5, 6, 7}) {
    const std::string run = "run" + std::to_string(stopped);
    {
      FileMetrics metrics(folder_);
      metrics.set_run(run);
      train(metrics, 1, 7);
    }
    {
      FileMetrics metrics(folder_);
      metrics.set_run(run);
      metrics.resume(history(stopped, stopped / 2));
      train(metrics, stopped + 1, 8);
    }
    EXPECT_EQ(events(run), expected) << run;
    if (stopped < 7) continue;
    std::filesystem::remove_all(folder_ / run);
    {
      FileMetrics metrics(folder_);
      metrics.set_run(run);
      metrics.resume(history(8, 4));
    }
    EXPECT_EQ(events(run), expected) << "a folder of events that was deleted is written anew";
  }
}

// What was told in the second before a kill had not reached the file, or the file is lost.
TEST_F(ResumedMetrics, ThatACrashLostAreWrittenFromTheHistory) {
  {
    FileMetrics metrics(folder_);
    metrics.set_run("unbroken");
    tell(metrics, 1, 8);
  }
  const std::string expected = lines("unbroken");
  for (const std::size_t kept : {expected.size(), expected.size() / 2, std::size_t{0}}) {
    std::ofstream(folder_ / "metrics.jsonl") << expected.substr(0, kept);
    {
      FileMetrics metrics(folder_);
      metrics.set_run("unbroken");
      metrics.resume(history(6, 3));
      tell(metrics, 7, 8);
    }
    EXPECT_EQ(lines("unbroken"), expected) << kept << " bytes";
  }
}

}  // namespace
}  // namespace demi::results
