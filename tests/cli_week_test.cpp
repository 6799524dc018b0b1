// Runs of days: which checkpoints stay. Runs the built `demi` (its path is in DEMI_PROGRAM).
#include <fcntl.h>
#include <gmock/gmock.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <sstream>
#include <utility>
#include <vector>

#include "demi/checkpoint/checkpoint.h"
#include "demi/checkpoint/manifest.h"
#include "demi/core/wait_until_testing.h"
#include "tests/cli_testing.h"
#include "tests/small_recipes.h"

namespace cli_testing {
namespace {

using testing::HasSubstr;

class Week : public Cli {
 protected:
  static Words mlp(const Words& more = {}) {
    Words words{"train", "mlp",          "--in", "24",       "--out", "24",    "--batches",
                "10",    "--batch-size", "4",    "--device", "cpu",   "--json"};
    words.insert(words.end(), more.begin(), more.end());
    return words;
  }
  Words pictures(const Words& more) {
    small_recipes::write_data("fashion-mnist", folder_ / "data");
    Words words{"train",
                "fashion-cnn",
                "--data-dir",
                (folder_ / "data").string(),
                "--batch-size",
                "4",
                "--test-batch-size",
                "4",
                "--device",
                "cpu",
                "--json"};
    words.insert(words.end(), more.begin(), more.end());
    return words;
  }
  fs::path run_folder(const std::string& name) const { return folder_ / "runs" / name; }

  // The best epochs of a metrics file, the best first, and the folder's checkpoints by epoch.
  static std::vector<int> best_epochs(const fs::path& run, const char* by, bool lowest) {
    std::vector<std::pair<double, int>> scores;
    std::istringstream lines(slurp(run / "metrics.jsonl"));
    for (std::string text; std::getline(lines, text);) {
      const auto line = nlohmann::json::parse(text);
      if (line.contains(by)) scores.emplace_back(line[by], line["epoch"]);
    }
    std::ranges::stable_sort(scores, [&](const auto& a, const auto& b) {
      return lowest ? a.first < b.first : a.first > b.first;
    });
    std::vector<int> epochs;
    for (const auto& [score, epoch] : scores) epochs.push_back(epoch);
    return epochs;
  }
  static int epoch_of(const fs::path& checkpoint) {
    return std::stoi(demi::checkpoint::read_manifest(checkpoint).text.at("demi.epoch"));
  }
  static std::vector<int> kept_epochs(const fs::path& run) {
    std::vector<int> epochs;
    for (const auto& entry : fs::directory_iterator(run / "checkpoints"))
      if (entry.is_directory()) epochs.push_back(epoch_of(entry.path()));
    std::ranges::sort(epochs);
    return epochs;
  }
};

TEST_F(Week, KeepsTheBestByTheRuleThatIsAskedFor) {
  const std::pair<const char*, bool> rules[] = {{"test_accuracy", false}, {"test_loss", true}};
  int number = 0;
  for (const auto& [by, lowest] : rules) {
    const Outcome outcome =
        run(pictures({"--epochs", "6", "--keep-best", "2", "--best-by", by, "--lr", "0.02"}));
    ASSERT_EQ(outcome.code, 0) << outcome.err;
    const fs::path folder = run_folder("train-fashion-cnn-00" + std::to_string(++number));
    std::vector<int> expected = best_epochs(folder, by, lowest);
    ASSERT_EQ(expected.size(), 6U);
    EXPECT_EQ(epoch_of(demi::checkpoint::find(folder / "checkpoints" / "best")), expected[0]);
    expected.resize(2);
    if (std::ranges::find(expected, 6) == expected.end()) expected.push_back(6);  // the last
    std::ranges::sort(expected);
    EXPECT_EQ(kept_epochs(folder), expected) << by;
  }
  EXPECT_NE(best_epochs(run_folder("train-fashion-cnn-001"), "test_accuracy", false)[0],
            best_epochs(run_folder("train-fashion-cnn-002"), "test_loss", true)[0])
      << "else the rules are not told apart";
}

TEST_F(Week, KeepsACheckpointEverySoManyStepsAcrossARestart) {
  ASSERT_EQ(run(mlp({"--epochs", "2", "--keep-every", "8"})).code, 0);
  const fs::path folder = run_folder("train-mlp-001");
  ASSERT_EQ(run({"train", "--resume", folder.string(), "--epochs", "3", "--json"}).code, 0);
  for (const char* name : {"step-00000008", "step-00000016", "step-00000024", "step-00000030"})
    EXPECT_TRUE(fs::exists(folder / "checkpoints" / name)) << name;
  EXPECT_FALSE(fs::exists(folder / "checkpoints" / "step-00000020"));
}

int times(const std::string& text, const std::string& part) {
  int count = 0;
  for (std::size_t at = 0; (at = text.find(part, at)) != std::string::npos; at += part.size())
    ++count;
  return count;
}

// A file server that goes away and comes back: a file is where the folder was.
TEST_F(Week, EachOutageIsWarnedOfOnce) {
  const pid_t child = start(mlp({"--epochs", "1000000", "--checkpoint-every", "5"}));
  const auto wait_until = [&](const std::function<bool()>& is_so) {
    return demi::wait_until([&] { return is_so() || has_ended(child); }) && is_so();
  };
  const fs::path folder = run_folder("train-mlp-001") / "checkpoints", away = folder_ / "away";
  const auto warnings = [&] {
    return times(slurp(folder_ / "err"), "could not be saved, and training goes on");
  };
  std::ofstream(away) << "no folder";
  // In one call: in between, a save would make the folder anew.
  const auto exchange = [&] {
    return renameat2(AT_FDCWD, folder.c_str(), AT_FDCWD, away.c_str(), RENAME_EXCHANGE) == 0;
  };
  // "last" is written before old checkpoints are removed: the second change shows a whole save.
  const auto saves = [&] {
    return std::ranges::all_of(std::array{1, 2}, [&](int) {
      const std::string before = slurp(folder / "last");
      return wait_until([&] { return slurp(folder / "last") != before; });
    });
  };
  // Each try brings the file of metrics up to its step.
  const auto taken = [&] {
    return times(slurp(folder.parent_path() / "metrics.jsonl"), "\"loss\"");
  };
  for (int outage = 1; outage <= 2; ++outage) {
    ASSERT_TRUE(wait_until([&] { return fs::exists(folder / "last"); }));
    ASSERT_TRUE(saves());
    ASSERT_TRUE(exchange());
    EXPECT_TRUE(wait_until([&] { return warnings() >= outage; }));
    const int before = taken();
    ASSERT_TRUE(wait_until([&] { return taken() >= before + 20; })) << "4 saves fail";
    EXPECT_EQ(warnings(), outage);
    ASSERT_TRUE(exchange());
  }
  EXPECT_TRUE(saves()) << "it saves again";
  kill(child, SIGTERM);
  const Outcome outcome = finish(child);
  EXPECT_EQ(outcome.code, 128 + SIGTERM) << outcome.err;
  EXPECT_EQ(warnings(), 2) << outcome.err;
}

TEST_F(Week, RulesThatSayNothingAreRefused) {
  const std::pair<Words, const char*> refused[] = {
      {{"--keep-every", "10min"}, "takes steps or epochs, not a time"},
      {{"--keep-every", "-1"}, "not a frequency"},
      {{"--best-by", "test_accuracy"}, "a regression has no accuracy"},
      {{"--keep-best", "2"}, "have no test set"},
  };
  for (const auto& [words, message] : refused) {
    const Outcome outcome = run(mlp(words));
    EXPECT_EQ(outcome.code, 2) << words[0] << ' ' << words[1];
    EXPECT_THAT(outcome.err, HasSubstr(message));
  }
  EXPECT_FALSE(fs::exists(folder_ / "runs"));
  EXPECT_NE(run({"compare", "mlp", "--keep-best", "2"}).code, 0) << "of one run alone";
}

}  // namespace
}  // namespace cli_testing
