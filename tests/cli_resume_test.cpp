// Runs that are killed or asked to stop, and go on: the bits of the unbroken run. Runs the built
// `demi` (its path is in DEMI_PROGRAM). DEMI_KILLS is how often one is killed, 20 if not set, and
// DEMI_KILLS_SEED the seed of the instants, 1 if not set.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <signal.h>
#include <sys/resource.h>

#include <algorithm>
#include <chrono>
#include <iostream>
#include <nlohmann/json.hpp>
#include <random>
#include <thread>

#include "demi/core/wait_until_testing.h"
#include "lab/recipes/same_run_testing.h"
#include "tests/cli_testing.h"
#include "tests/small_recipes.h"

namespace cli_testing {
namespace {

using same_run::expect_same_run;
using ::testing::AnyOf;

constexpr int kSigKilled = 1000 + SIGKILL;  // Outcome::code

Words operator+(Words a, const Words& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

class Resume : public Cli {
 protected:
  // Loss scaling that skips steps, a moving average, and windows of three batches of which the last
  // in an epoch has one.
  static Words mlp(const Words& more = {}) {
    return Words{"train",       "mlp",          "--in",
                 "24",          "--out",        "24",
                 "--batches",   "40",           "--batch-size",
                 "4",           "--accumulate", "3",
                 "--precision", "fp16",         "--optimizer",
                 "adamw",       "--clip-norm",  "1",
                 "--ema",       "0.9",          "--growth-interval",
                 "50",          "--device",     "cpu",
                 "--json"} +
           more;
  }

  // Dropout, BatchNorm, a schedule by step, and a test after each epoch of three batches.
  Words pictures(const Words& more = {}) {
    small_recipes::write_data("fashion-mnist", folder_ / "data");
    return Words{"train",        "fashion-cnn", "--data-dir",        (folder_ / "data").string(),
                 "--batch-size", "4",           "--test-batch-size", "4",
                 "--device",     "cpu",         "--precision",       "bf16",
                 "--json"} +
           more;
  }

  fs::path run_folder(const std::string& name) const { return folder_ / "runs" / name; }

  // Waits until `is_so`; false if the child ends before.
  static bool wait_until(pid_t child, const std::function<bool()>& is_so) {
    while (!is_so()) {
      if (has_ended(child)) return false;
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
    }
    return true;
  }

  static bool has(const fs::path& file, const std::string& text) {
    return slurp(file).find(text) != std::string::npos;
  }

  // Starts it and sends the signal so much later, if it has not ended by then.
  Outcome run_and_signal(const Words& arguments, int number, std::chrono::milliseconds after) {
    const pid_t child = start(arguments);
    demi::wait_until([&] { return has_ended(child); }, after);  // any instant will do
    kill(child, number);
    return finish(child);
  }

  // Runs `arguments`, stopped by `number` at random instants and resumed, until it has been stopped
  // `times` times, in as many runs as that takes. Each run ends as the unbroken one, NAME-001.
  void stop_at_random(const Words& arguments, const std::string& name, int number, int times) {
    const auto begun = std::chrono::steady_clock::now();
    const Outcome unbroken = run(arguments);
    const auto lasts = std::chrono::duration_cast<std::chrono::milliseconds>(
        std::chrono::steady_clock::now() - begun);
    ASSERT_EQ(unbroken.code, 0) << unbroken.err;
    const int stopped = number == SIGKILL ? kSigKilled : 128 + number;
    std::mt19937 random(static_cast<unsigned>(of_environment("DEMI_KILLS_SEED", 1)));
    int count = 0;
    const fs::path folder = run_folder(name + "-002");
    while (count < times) {
      fs::remove_all(folder);
      Outcome outcome;
      do {
        Words words = arguments;
        if (fs::exists(folder / "config.json"))
          words = words + Words{"--resume", folder.string()};
        else
          fs::remove_all(folder);  // stopped before it began
        const std::chrono::milliseconds after(
            std::uniform_int_distribution<int64_t>(lasts.count() / 10, lasts.count() / 2)(random));
        outcome = count >= times ? run(words) : run_and_signal(words, number, after);
        count += outcome.code == stopped;
        if (outcome.code == stopped) tally_.add(folder);
      } while (outcome.code == stopped);
      ASSERT_EQ(outcome.code, 0) << outcome.err;
      expect_same_run(run_folder(name + "-001"), folder);
      EXPECT_EQ(same_run::without_times(outcome.out), same_run::without_times(unbroken.out));
      if (HasFailure()) return;
      ++tally_.runs;
    }
    std::cout << "stopped " << count << " times: " << tally_.before << " before the run began, "
              << tally_.in_save << " while a checkpoint was written; " << tally_.runs
              << " runs, each with the bits of the unbroken one"
              << std::endl;  // before the next fork
    tally_ = {};
  }

  // Where runs were when they were stopped.
  struct Tally {
    int before = 0, in_save = 0, runs = 0;

    void add(const fs::path& folder) {
      before += !fs::exists(folder / "config.json");
      std::error_code none;
      for (fs::directory_iterator entry(folder / "checkpoints", none), end; !none && entry != end;
           entry.increment(none))
        in_save += entry->path().extension() == ".tmp";
    }
  };

  static int of_environment(const char* name, int otherwise) {
    const char* set = std::getenv(name);
    return set && *set != '\0' ? std::stoi(set) : otherwise;
  }
  static int kills() { return of_environment("DEMI_KILLS", 20); }

  Tally tally_;
};

TEST_F(Resume, KilledAtRandomInstantsItEndsWithTheBitsOfTheUnbrokenRun) {
  stop_at_random(mlp({"--epochs", "20", "--checkpoint-every", "7"}), "train-mlp", SIGKILL,
                 kills() / 2);
}

TEST_F(Resume, KilledAtRandomInstantsARunWithTestsToo) {
  stop_at_random(pictures({"--epochs", "6", "--checkpoint-every", "2"}), "train-fashion-cnn",
                 SIGKILL, kills() - kills() / 2);
}

// A signal may come in the middle of a step's batches.
TEST_F(Resume, StoppedBySignalsItSavesAndEndsWithTheBitsOfTheUnbrokenRun) {
  const Words words = mlp({"--epochs", "100", "--checkpoint-every", "0"});
  ASSERT_EQ(run(words).code, 0);
  const fs::path folder = run_folder("train-mlp-002");
  Words resume;
  for (const int number : {SIGINT, SIGTERM, SIGHUP}) {
    const pid_t child = start(words + resume);
    const auto lines = [&] {
      const std::string text = slurp(folder / "metrics.jsonl");
      return std::ranges::count(text, '\n');
    };
    const auto before = lines();
    ASSERT_TRUE(wait_until(child, [&] { return lines() > before; }));
    kill(child, number);
    const Outcome outcome = finish(child);
    EXPECT_EQ(outcome.code, 128 + number);
    EXPECT_THAT(outcome.err, Not(HasSubstr("SIGUSR1")));
    resume = {"--resume", folder.string()};
  }
  ASSERT_EQ(run(words + resume).code, 0);
  expect_same_run(run_folder("train-mlp-001"), folder);
}

// A run is not begun anew for a precision that it has.
TEST_F(Resume, InFp32AskedForFp32ItEndsWithTheBitsOfTheUnbrokenRun) {
  Words words = mlp({"--epochs", "100", "--checkpoint-every", "0"});
  *(std::ranges::find(words, "--precision") + 1) = "fp32";
  const auto scaling = std::ranges::find(words, "--growth-interval");
  words.erase(scaling, scaling + 2);
  ASSERT_EQ(run(words).code, 0);
  const fs::path folder = run_folder("train-mlp-002");
  const pid_t child = start(words);
  ASSERT_TRUE(wait_until(child, [&] { return has(folder / "metrics.jsonl", "\"step\""); }));
  kill(child, SIGTERM);
  ASSERT_EQ(finish(child).code, 128 + SIGTERM);
  const Outcome outcome =
      run({"train", "--resume", folder.string(), "--precision", "fp32", "--json"});
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_THAT(outcome.err, HasSubstr("goes on after step"));
  expect_same_run(run_folder("train-mlp-001"), folder);
}

// As timeout and systemd may do: the second signal comes while the checkpoint is saved.
TEST_F(Resume, ASecondSignalLosesNoCheckpoint) {
  const pid_t child = start(mlp({"--epochs", "1000000", "--checkpoint-every", "0"}));
  const fs::path folder = run_folder("train-mlp-001");
  ASSERT_TRUE(wait_until(child, [&] { return has(folder / "metrics.jsonl", "\"step\""); }));
  kill(child, SIGSTOP);  // both are there when it goes on
  kill(child, SIGTERM);
  kill(child, SIGHUP);
  kill(child, SIGCONT);
  const Outcome outcome = finish(child);
  EXPECT_THAT(outcome.code, AnyOf(128 + SIGTERM, 128 + SIGHUP)) << outcome.err;
  EXPECT_TRUE(fs::exists(folder / "checkpoints" / "last"));
  EXPECT_THAT(outcome.err, HasSubstr("go on: demi train --resume"));
}

// A process that is so slow that it has no time for a step leaves nothing, and begins again.
TEST_F(Resume, StopAfterEndsWith75AndAutoGoesOn) {
  const fs::path folder = run_folder("train-mlp-001");
  const Words words = mlp({"--epochs", "1000000", "--stop-after", "2s", "--resume", "auto"});
  Outcome outcome;
  for (int tries = 0; tries < 10 && !fs::exists(folder); ++tries) {
    outcome = run(words);
    ASSERT_EQ(outcome.code, 75) << outcome.err;
  }
  EXPECT_THAT(outcome.err, HasSubstr("the time of --stop-after 2s is over"));
  EXPECT_FALSE(fs::exists(folder / "result.json"));
  const std::string first = slurp(folder / "checkpoints" / "last");
  EXPECT_NE(first, "");
  for (int tries = 0; tries < 10 && slurp(folder / "checkpoints" / "last") == first; ++tries)
    ASSERT_EQ(run(words).code, 75);
  EXPECT_NE(slurp(folder / "checkpoints" / "last"), first) << "it goes on in the same folder";
  EXPECT_EQ(run(mlp({"--epochs", "1", "--stop-after", "9h"})).code, 0) << "done before";
  EXPECT_TRUE(fs::exists(run_folder("train-mlp-002") / "result.json"));
}

TEST_F(Resume, Sigusr1SavesACheckpointAndTrainingGoesOn) {
  const pid_t child = start(mlp({"--epochs", "1000000", "--checkpoint-every", "0"}));
  const fs::path folder = run_folder("train-mlp-001"), last = folder / "checkpoints" / "last";
  ASSERT_TRUE(wait_until(child, [&] { return fs::exists(folder / "metrics.jsonl"); }));
  EXPECT_FALSE(fs::exists(last));
  kill(child, SIGUSR1);
  ASSERT_TRUE(wait_until(child, [&] { return fs::exists(last); }));
  const std::string first = slurp(last);
  kill(child, SIGUSR1);
  ASSERT_TRUE(wait_until(child, [&] { return slurp(last) != first; }));
  kill(child, SIGTERM);
  const Outcome outcome = finish(child);
  EXPECT_EQ(outcome.code, 128 + SIGTERM) << outcome.err;
  EXPECT_NE(slurp(last), first);
  EXPECT_THAT(outcome.err, HasSubstr("saving a checkpoint"));
  EXPECT_THAT(outcome.err, HasSubstr("go on: demi train --resume " + folder.string()));
}

// A shell that is given the line goes on with the run, whatever its folder is called.
TEST_F(Resume, TheLineToGoOnCanBePasted) {
  const fs::path root = folder_ / "it's a $HOME";
  const pid_t child = start(
      mlp({"--epochs", "1000000", "--checkpoint-every", "1epoch", "--run-dir", root.string()}));
  const fs::path folder = root / "train-mlp-001", last = folder / "checkpoints" / "last";
  ASSERT_TRUE(wait_until(child, [&] { return fs::exists(last); }));
  kill(child, SIGTERM);
  const std::string err = finish(child).err, mark = "go on: demi ";
  ASSERT_THAT(err, HasSubstr(mark));
  std::string line = err.substr(err.find(mark) + mark.size());
  line.resize(line.find('\n'));
  EXPECT_EQ(line, "train --resume '" + (folder_ / "it").string() + "'\\''s a $HOME/train-mlp-001'");
  const std::string before = slurp(last);
  for (int tries = 0; tries < 10 && slurp(last) == before; ++tries) {
    const Outcome outcome =
        run({"-c", std::string(std::getenv("DEMI_PROGRAM")) + " " + line + " --stop-after 2s"}, {},
            "/bin/sh");
    ASSERT_EQ(outcome.code, 75) << outcome.err;
  }
  EXPECT_NE(slurp(last), before);
}

// It would end the program while the libraries are loaded: it is blocked before main() until there
// is a handler.
TEST_F(Resume, Sigusr1BeforeMainEndsNothing) {
  starts_for_real_ = true;
  const pid_t child = start(mlp({"--epochs", "1"}), [] {
    for (const char* decided : {"GOMP_SPINCOUNT", "OMP_WAIT_POLICY"}) unsetenv(decided);
  });
  const auto has_sigusr1 = [&](const char* key) {
    std::ifstream status("/proc/" + std::to_string(child) + "/status");
    for (std::string line; std::getline(status, line);)
      if (line.starts_with(key))
        return (std::stoull(line.substr(7), nullptr, 16) >> (SIGUSR1 - 1) & 1) != 0;
    return false;
  };
  ASSERT_TRUE(wait_until(child, [&] { return has_sigusr1("SigBlk:"); }));
  EXPECT_FALSE(has_sigusr1("SigCgt:")) << "there is no handler yet";
  kill(child, SIGUSR1);
  const Outcome outcome = finish(child);
  EXPECT_EQ(outcome.code, 0) << outcome.err;
}

class ResumeCompare : public Resume {
 protected:
  Words compare(const Words& more = {}) {
    Words words = pictures({"--epochs", "8", "--checkpoint-every", "5"});
    words[0] = "compare";
    std::erase(words, "--precision");
    std::erase(words, "bf16");
    return words + Words{"--runs", "fp32,bf16,fp16:scale=128"} + more;
  }
  static std::set<std::string> labels() { return {"fp32", "bf16", "fp16-scale-128"}; }

  // The lines of one run, with their times.
  static std::string lines_of(const fs::path& folder, const std::string& run) {
    std::istringstream lines(slurp(folder / "metrics.jsonl"));
    std::string all;
    for (std::string line; std::getline(lines, line);)
      if (line.find("\"run\":\"" + run + "\"") != std::string::npos) all += line + "\n";
    return all;
  }
};

TEST_F(ResumeCompare, GoesOnInTheSecondRunWithoutTrainingTheFirstAgain) {
  const Outcome unbroken = run(compare());
  ASSERT_EQ(unbroken.code, 0) << unbroken.err;
  const fs::path folder = run_folder("compare-fashion-cnn-002");
  const pid_t child = start(compare());
  const auto in_second = [&] {
    return fs::exists(folder / "checkpoints" / "bf16" / "last") &&
           has(folder / "metrics.jsonl", "\"bf16\"");
  };
  ASSERT_TRUE(wait_until(child, in_second));
  kill(child, SIGKILL);
  EXPECT_EQ(finish(child).code, kSigKilled);
  const std::string first = lines_of(folder, "fp32");
  const auto expect_refusal = [&](const Words& more, const std::string& words) {
    const Outcome refused = run(Words{"compare", "--resume"} + more);
    EXPECT_EQ(refused.code, 2);
    EXPECT_THAT(refused.err, HasSubstr(words));
  };
  EXPECT_TRUE(has(folder / "config.json", "--runs fp32,bf16,fp16:scale=128")) << "to repeat it";
  expect_refusal({folder.string(), "--runs", "fp32,bf16"}, "begun with fp32,bf16,fp16:scale=128");
  expect_refusal({folder.string(), "--sweep", "lr=0.1,0.2"}, "a sweep makes a comparison");
  const Outcome outcome = run({"compare", "--resume", folder.string(), "--json"});
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_EQ(lines_of(folder, "fp32"), first) << "its steps, with their times";
  EXPECT_THAT(outcome.err, HasSubstr("fp32: is trained already"));
  expect_same_run(run_folder("compare-fashion-cnn-001"), folder, labels());
  EXPECT_EQ(same_run::without_times(outcome.out), same_run::without_times(unbroken.out));
}

TEST_F(ResumeCompare, RunsThatTakeTurnsGoOnEachWhereItWas) {
  const Outcome unbroken = run(compare({"--interleave=4"}));
  ASSERT_EQ(unbroken.code, 0) << unbroken.err;
  const fs::path folder = run_folder("compare-fashion-cnn-002");
  const pid_t child = start(compare({"--interleave=4"}));
  ASSERT_TRUE(wait_until(child, [&] { return has(folder / "metrics.jsonl", "\"bf16\""); }));
  kill(child, SIGTERM);
  Outcome outcome = finish(child);
  EXPECT_EQ(outcome.code, 128 + SIGTERM);
  EXPECT_TRUE(has(folder / "config.json", "--interleave=4")) << "the line to repeat";
  for (const char* label : {"fp32", "bf16"})
    EXPECT_THAT(outcome.err,
                HasSubstr("kept: " + (folder / "checkpoints" / label / "step-").string()));
  for (int i = 0; i < 3 && outcome.code != 0; ++i)
    outcome = run_and_signal({"compare", "--resume", folder.string(), "--json"}, SIGKILL,
                             std::chrono::milliseconds(600 + 100 * i));
  if (outcome.code != 0) outcome = run({"compare", "--resume", folder.string(), "--json"});
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  expect_same_run(run_folder("compare-fashion-cnn-001"), folder, labels());
}

class ResumeSettings : public Resume {
 protected:
  // A run of some steps that a signal ended.
  void begin(const Words& more = {}) {
    const pid_t child = start(mlp({"--epochs", "1000000", "--checkpoint-every", "1epoch"}) + more);
    ASSERT_TRUE(wait_until(child, [&] { return fs::exists(folder() / "checkpoints" / "last"); }));
    kill(child, SIGTERM);
    ASSERT_EQ(finish(child).code, 128 + SIGTERM);
  }
  fs::path folder() const { return run_folder("train-mlp-001"); }

  // Everything in the run's folder.
  std::map<std::string, std::string> files() const {
    std::map<std::string, std::string> all;
    for (const auto& entry : fs::recursive_directory_iterator(folder()))
      if (entry.is_regular_file()) all[entry.path().string()] = slurp(entry.path());
    return all;
  }

  // Refused with that code and those words, and nothing is changed.
  void expect_refusal(const Words& arguments, int code, const std::vector<std::string>& words) {
    const auto before = files();
    const Outcome outcome = run(arguments);
    EXPECT_EQ(outcome.code, code) << outcome.err;
    for (const std::string& word : words) EXPECT_THAT(outcome.err, HasSubstr(word));
    EXPECT_TRUE(files() == before) << arguments.back();
  }
};

TEST_F(ResumeSettings, ThatWouldChangeTheTrainingAreRefusedWithTheOldAndTheNewValue) {
  begin();
  const Words resume{"train", "--resume", folder().string()};
  expect_refusal(resume + Words{"--lr", "0.5"}, 2, {"--lr", "seen: 0.5", "begun with 0.001"});
  expect_refusal(resume + Words{"--batch-size", "8"}, 2, {"seen: 8", "begun with 4"});
  expect_refusal(resume + Words{"--epochs", "3"}, 2, {"--epochs", "begun with 1000000"});
  expect_refusal(resume + Words{"--no-autocast"}, 2, {"--no-autocast", "begun with true"});
  expect_refusal({"train", "fashion-cnn", "--resume", folder().string()}, 2, {"mlp"});
  expect_refusal({"compare", "--resume", folder().string()}, 2,
                 {"demi train --resume " + folder().string()});
  expect_refusal({"train", "--resume", (folder_ / "nothing").string()}, 3, {"no such run folder"});
  expect_refusal({"train", "--resume", folder_.string()}, 3, {});
  setenv("DEMI_SEED", "7", 1);
  expect_refusal(resume, 2, {"DEMI_SEED", "seen: 7", "begun with 0"});
  unsetenv("DEMI_SEED");
  expect_refusal({"train", "mlp", "--stop-after", "soon"}, 2, {"11h50m", "soon"});
  expect_refusal({"train", "mlp", "--checkpoint-every", "often"}, 2, {"1epoch", "10min"});
  expect_refusal({"train", "mlp", "--keep-last", "-1"}, 2, {"too small"});
}

TEST_F(ResumeSettings, WithTheirOldValuesAndThoseThatMayChangeAreAccepted) {
  begin({"--steps", "600"});
  const Words words =
      mlp({"--epochs", "1000000", "--steps", "600"}) +
      Words{"--resume", "auto", "--workers", "1", "--keep-last", "2", "--checkpoint-every", "20"};
  const Outcome outcome = run(words);
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_THAT(slurp(folder() / "config.json"), HasSubstr("\"keep_last\": 2"));
  EXPECT_THAT(slurp(folder() / "config.json"), HasSubstr("\"resume\": \"\""));
  EXPECT_THAT(slurp(folder() / "config.json"), Not(HasSubstr("--resume"))) << "the line to repeat";
  EXPECT_THAT(slurp(folder() / "config.json"), HasSubstr("--keep-last 2"));
  EXPECT_THAT(run({"train", "--resume", folder().string()}).err,
              HasSubstr("is trained already, in 600 steps"));
  ASSERT_TRUE(fs::exists(folder() / "result.json"));
  for (const auto& file : fs::recursive_directory_iterator(folder() / "checkpoints"))
    if (file.path().filename() == "manifest.json") small_recipes::write(file.path(), "{");
  const Outcome damaged = run({"train", "--resume", folder().string()});
  EXPECT_EQ(damaged.code, 3) << damaged.err;
  EXPECT_TRUE(fs::exists(folder() / "result.json")) << "no checkpoint was read";
  for (const auto& one : fs::directory_iterator(folder() / "checkpoints"))
    fs::remove_all(one.path());
  expect_refusal({"train", "--resume", folder().string()}, 3, {"left no checkpoint"});
  fs::remove_all(folder() / "checkpoints");
  expect_refusal({"train", "--resume", folder().string()}, 3, {"left no checkpoint"});
}

TEST_F(ResumeSettings, SplitWeightsGoOnInFp32AsTheMessageSays) {
  const Outcome begun =
      run({"train", "mlp", "--in", "8", "--out", "8", "--batches", "4", "--batch-size", "4",
           "--precision", "bf16", "--weight-mode", "split", "--epochs", "1", "--device", "cpu"});
  ASSERT_EQ(begun.code, 0) << begun.err;
  const Words fp32{"train", "--resume", folder().string(), "--epochs", "2", "--precision", "fp32"};
  expect_refusal(fp32, 2, {"split with --precision fp32", "--weight-mode master, or"});
  const Outcome master = run(fp32 + Words{"--weight-mode", "master"});
  EXPECT_EQ(master.code, 0) << master.err;
  EXPECT_TRUE(fs::exists(run_folder("train-mlp-002") / "result.json"));
}

// The first run's checkpoint is whole, and has nothing left to train.
TEST_F(ResumeCompare, AFinishedOneKeepsItsResultIfALaterCheckpointIsDamaged) {
  ASSERT_EQ(run({"compare", "mlp", "--in", "8", "--out", "8", "--batches", "2", "--batch-size", "4",
                 "--epochs", "1", "--device", "cpu", "--runs", "fp32,bf16"})
                .code,
            0);
  const fs::path folder = run_folder("compare-mlp-001");
  for (const auto& file : fs::recursive_directory_iterator(folder / "checkpoints/bf16"))
    if (file.path().filename() == "manifest.json") small_recipes::write(file.path(), "{");
  EXPECT_EQ(run({"compare", "--resume", folder.string()}).code, 3);
  EXPECT_TRUE(fs::exists(folder / "result.json"));
}

// Its label has the file's name, its checkpoint what the file says.
TEST_F(ResumeCompare, ARunWithAPolicyFileGoesOnUnlessTheFileSaysSomethingElse) {
  const fs::path policy = folder_ / "p.txt", folder = run_folder("compare-mlp-001");
  small_recipes::write(policy, "softmax fp32\n");
  ASSERT_EQ(
      run({"compare", "mlp", "--in", "8", "--out", "8", "--batches", "2", "--batch-size", "4",
           "--epochs", "1", "--device", "cpu", "--runs", "fp32,bf16:op-policy=" + policy.string()})
          .code,
      0);
  const Words resume{"compare", "--resume", folder.string()};
  const Outcome outcome = run(resume);
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_THAT(outcome.err, HasSubstr("op-policy=" + policy.string() + ": is trained already"));
  small_recipes::write(policy, "softmax fp32\nmm fp32\n");
  const Outcome changed = run(resume);
  EXPECT_EQ(changed.code, 2) << changed.err;
  EXPECT_THAT(changed.err, HasSubstr("op-policy in " + (folder / "config.json").string()));
  EXPECT_THAT(changed.err, HasSubstr("mm fp32"));
}

// Without --runs they are the recipe's, or the device's.
TEST_F(ResumeCompare, AutoPassesOverAComparisonOfOtherRuns) {
  const Words words{"compare",      "mlp", "--in",     "8", "--out",    "8",   "--batches", "2",
                    "--batch-size", "4",   "--epochs", "1", "--device", "cpu", "--resume",  "auto"};
  ASSERT_EQ(run(words + Words{"--runs", "bf16"}).code, 0);
  const fs::path first = run_folder("compare-mlp-001"), second = run_folder("compare-mlp-002");
  fs::remove(first / "result.json");
  const Outcome other = run(words);
  ASSERT_EQ(other.code, 0) << other.err;
  EXPECT_THAT(other.err,
              HasSubstr(first.string() + " is another: its runs are bf16, not fp32,bf16"));
  EXPECT_FALSE(fs::exists(first / "result.json"));
  fs::remove(second / "result.json");
  ASSERT_EQ(run(words).code, 0);
  EXPECT_TRUE(fs::exists(second / "result.json")) << "these are its runs";
  ASSERT_EQ(run(words + Words{"--runs", "bf16"}).code, 0);
  EXPECT_TRUE(fs::exists(first / "result.json"));
  EXPECT_FALSE(fs::exists(run_folder("compare-mlp-003")));
  // The folder that is advised is there: of one run it has no folders of runs.
  const Outcome refused = run({"compare", "--resume", first.string(), "--no-scaler"});
  EXPECT_EQ(refused.code, 2) << refused.err;
  EXPECT_TRUE(
      refused.err.ends_with("demi train --resume " + (first / "checkpoints").string() + "\n"))
      << refused.err;
}

// It makes a network of its own, which a checkpoint of another would not reach.
TEST_F(ResumeCompare, LayersAndSweepsOfACheckpointAreRefused) {
  ASSERT_EQ(run(mlp({"--epochs", "1"})).code, 0);
  const std::string checkpoint = (run_folder("train-mlp-001") / "checkpoints").string();
  for (const Words& more : {Words{"--layers"}, Words{"--sweep", "lr=0.1,0.2"}}) {
    const Outcome outcome = run(Words{"compare", "mlp", "--resume", checkpoint} + more);
    EXPECT_EQ(outcome.code, 2) << outcome.err;
    EXPECT_THAT(outcome.err, HasSubstr("--resume"));
  }
}

// 40 batches in steps of 3 are 14 steps an epoch.
TEST_F(ResumeSettings, MoreEpochsGiveTheBitsOfARunThatWasBegunWithThem) {
  ASSERT_EQ(run(mlp({"--epochs", "2"})).code, 0);
  const Outcome longer = run({"train", "--resume", folder().string(), "--epochs", "4", "--json"});
  ASSERT_EQ(longer.code, 0) << longer.err;
  ASSERT_EQ(run(mlp({"--epochs", "4"})).code, 0);
  const fs::path whole = run_folder("train-mlp-002");
  EXPECT_FALSE(slurp(folder() / "model.safetensors").empty());
  const auto a = demi::checkpoint::load(folder()), b = demi::checkpoint::load(whole);
  same_run::expect_same_tensors(a.model, b.model);
  same_run::expect_same_tensors(a.state, b.state);
  EXPECT_EQ(same_run::metrics_by_run(folder()), same_run::metrics_by_run(whole));
  // While it goes on it has no result, and is unfinished again.
  const fs::path result = folder() / "result.json", metrics = folder() / "metrics.jsonl";
  const auto lines = fs::file_size(metrics);
  const pid_t child = start({"train", "--resume", folder().string(), "--epochs", "1000000"});
  ASSERT_TRUE(wait_until(child, [&] { return fs::file_size(metrics) > lines; }));
  EXPECT_FALSE(fs::exists(result));
  kill(child, SIGTERM);
  EXPECT_EQ(finish(child).code, 128 + SIGTERM);
  EXPECT_FALSE(fs::exists(result));
  // The one-cycle schedule is made for the epochs there are.
  const Outcome cycle = run(pictures({"--epochs", "1"}));
  ASSERT_EQ(cycle.code, 0) << cycle.err;
  const Outcome refused =
      run({"train", "--resume", run_folder("train-fashion-cnn-001").string(), "--epochs", "2"});
  EXPECT_EQ(refused.code, 2);
  EXPECT_THAT(refused.err, HasSubstr("one-cycle"));
}

TEST_F(ResumeSettings, AutoGoesOnWithTheNewestUnfinishedRunElseItBeginsOne) {
  const Words words = mlp({"--epochs", "2", "--resume", "auto"});
  const Outcome first = run(words);
  ASSERT_EQ(first.code, 0) << first.err;
  EXPECT_THAT(first.err, HasSubstr("a new one begins"));
  fs::create_directories(run_folder("train-mlp-007"));  // killed before it began
  const Outcome second = run(words);
  ASSERT_EQ(second.code, 0) << second.err;
  ASSERT_TRUE(fs::exists(run_folder("train-mlp-008") / "result.json"));
  fs::remove(folder() / "result.json");
  const Outcome third = run(words);
  ASSERT_EQ(third.code, 0) << third.err;
  EXPECT_TRUE(fs::exists(folder() / "result.json")) << "the unfinished one, though it is older";
  EXPECT_FALSE(fs::exists(run_folder("train-mlp-009")));
  // Killed before its first checkpoint.
  fs::copy_file(folder() / "config.json", run_folder("train-mlp-007") / "config.json");
  const Outcome fourth = run(words);
  ASSERT_EQ(fourth.code, 0) << fourth.err;
  EXPECT_THAT(fourth.err, HasSubstr("no checkpoint has been saved yet"));
  same_run::expect_same_run(folder(), run_folder("train-mlp-007"));
}

TEST_F(ResumeSettings, ACheckpointBeginsANewRunWhichEndsWithTheSameBits) {
  const Outcome unbroken =
      run(mlp({"--epochs", "4", "--checkpoint-every", "10", "--keep-last", "0"}));
  ASSERT_EQ(unbroken.code, 0) << unbroken.err;
  const fs::path checkpoint = folder() / "checkpoints" / "step-00000020";
  ASSERT_TRUE(fs::exists(checkpoint));
  const auto before = files();
  const Outcome outcome = run({"train", "--resume", checkpoint.string(), "--json"});
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_TRUE(files() == before);
  EXPECT_THAT(outcome.err, HasSubstr("goes on after step 20"));
  expect_same_run(folder(), run_folder("train-mlp-002"));
  // With the precision that it was begun with, too.
  const Outcome named =
      run({"train", "--resume", checkpoint.string(), "--precision", "fp16", "--json"});
  ASSERT_EQ(named.code, 0) << named.err;
  expect_same_run(folder(), run_folder("train-mlp-003"));
  // Out of its run's folder it needs a recipe's name.
  const fs::path copy = folder_ / "copy";
  fs::copy(checkpoint, copy, fs::copy_options::recursive);
  expect_refusal({"train", "--resume", copy.string()}, 2,
                 {"which recipe?", "demi train RECIPE --resume " + copy.string()});
  ASSERT_EQ(run({"train", "mlp", "--resume", copy.string(), "--json"}).code, 0);
  expect_same_run(folder(), run_folder("train-mlp-004"));
}

TEST_F(ResumeSettings, AnotherPrecisionGoesOnInARunFolderOfItsOwn) {
  const Outcome begun = run(mlp({"--steps", "20"}));
  ASSERT_EQ(begun.code, 0) << begun.err;
  const auto before = files();
  const Words resume{"train", "--resume", folder().string(), "--steps", "24", "--json"};
  int number = 1;
  const auto expect_to_go_on = [&](const Words& words, const std::string& said) {
    const Outcome outcome = run(resume + words);
    ASSERT_EQ(outcome.code, 0) << outcome.err;
    EXPECT_THAT(outcome.err, HasSubstr("the run goes on with " + said));
    EXPECT_THAT(outcome.err, HasSubstr("goes on after step 20"));
    EXPECT_TRUE(files() == before) << "its own folder stays as it is";
    const fs::path made = run_folder("train-mlp-00" + std::to_string(++number));
    EXPECT_TRUE(fs::exists(made / "checkpoints" / "step-00000024"));
  };
  expect_to_go_on({"--precision", "bf16"},
                  "precision bf16, begun with fp16; losses are not scaled");
  expect_to_go_on({"--precision", "fp16-true"},
                  "precision fp16-true, begun with fp16; losses are not scaled");
  expect_to_go_on({"--loss-scale", "64"},
                  "loss-scale 64, begun with auto; its loss scale begins anew");
  expect_to_go_on({"--no-scaler"}, "scaler false, begun with true; losses are not scaled");
  // Each run of a comparison goes on from one checkpoint.
  const Outcome compared = run({"compare", "--resume", (folder() / "checkpoints" / "last").string(),
                                "--runs", "fp32,bf16", "--steps", "24", "--json"});
  ASSERT_EQ(compared.code, 0) << compared.err;
  EXPECT_THAT(compared.err, HasSubstr("fp32: goes on after step 20"));
  EXPECT_THAT(compared.err, HasSubstr("precision bf16, begun with fp16; losses are not scaled"));
  expect_refusal({"compare", "--resume", run_folder("compare-mlp-001").string(), "--no-scaler"}, 2,
                 {"keep their loss scaling",
                  (run_folder("compare-mlp-001") / "checkpoints" / "fp32").string()});
  // And back, from the run that went on.
  const fs::path in_bf16 = run_folder("train-mlp-002");
  const Outcome back = run(
      {"train", "--resume", in_bf16.string(), "--precision", "fp16", "--steps", "28", "--json"});
  ASSERT_EQ(back.code, 0) << back.err;
  EXPECT_THAT(back.err, HasSubstr("precision fp16, begun with bf16; its loss scale begins anew"));
}

TEST_F(ResumeSettings, ASecondProcessInTheRunsFolderIsRefused) {
  const pid_t child = start(mlp({"--epochs", "1000000", "--checkpoint-every", "1epoch"}));
  ASSERT_TRUE(wait_until(child, [&] { return fs::exists(folder() / "checkpoints" / "last"); }));
  const fs::path result = folder() / "result.json";
  for (const std::string& which : {std::string("auto"), folder().string()}) {
    if (which != "auto") std::ofstream(result) << "{}";
    const Outcome outcome = run(mlp({"--epochs", "1000000", "--resume", which}));
    EXPECT_EQ(outcome.code, 2) << outcome.err;
    EXPECT_THAT(outcome.err, HasSubstr(std::to_string(child))) << "the process that holds it";
  }
  EXPECT_TRUE(fs::remove(result)) << "it was refused before anything was changed";
  kill(child, SIGKILL);
  finish(child);
  const pid_t next =
      start(mlp({"--epochs", "1000000", "--checkpoint-every", "1epoch", "--resume", "auto"}));
  const std::string last = slurp(folder() / "checkpoints" / "last");
  EXPECT_TRUE(wait_until(next, [&] { return slurp(folder() / "checkpoints" / "last") != last; }))
      << "a dead process holds nothing";
  kill(next, SIGTERM);
  EXPECT_EQ(finish(next).code, 128 + SIGTERM);
}

TEST_F(ResumeSettings, ADamagedCheckpointIsNamedAndNothingIsChanged) {
  begin();
  const fs::path checkpoint = demi::checkpoint::find(folder());
  const Words resume{"train", "--resume", folder().string()};
  for (const char* name : {"model.safetensors", "state.safetensors", "manifest.json"}) {
    const fs::path file = checkpoint / name;
    const std::string whole = slurp(file);
    std::string flipped = whole;
    flipped[flipped.size() / 2] = static_cast<char>(flipped[flipped.size() / 2] ^ 4);
    std::ofstream(file, std::ios::binary) << flipped;
    const Outcome outcome = run(resume);
    EXPECT_EQ(outcome.code, 3) << name << ": " << outcome.err;
    EXPECT_THAT(outcome.err, HasSubstr(name));
    EXPECT_EQ(slurp(file), flipped);
    fs::remove(file);
    EXPECT_EQ(run(resume).code, 3) << name << " is missing";
    std::ofstream(file, std::ios::binary) << whole;
  }
  const std::string config = slurp(folder() / "config.json");
  std::ofstream(folder() / "config.json") << config.substr(0, config.size() / 2);
  expect_refusal(resume, 3, {"config.json", "damaged"});
}

// What config.json says has no checksum, and its seed, clipping and precision decide the bits.
TEST_F(ResumeSettings, AConfigThatIsNotTheCheckpointsIsRefusedWithBothValues) {
  begin();
  const fs::path file = folder() / "config.json";
  const std::string whole = slurp(file);
  const Words resume{"train", "--resume", folder().string()};
  const std::vector<std::vector<std::string>> changes{
      {"seed", "0", "7"},        {"clip_norm", "1", "2"},
      {"ema", "0.9", "0.8"},     {"precision", "\"fp16\"", "\"bf16\""},
      {"loss_weight", "1", "3"}, {"schedule", "\"constant\"", "\"linear\""},
      {"input_scale", "1", "4"}, {"epochs", "1000000", "5"}};
  for (const auto& change : changes) {
    const std::string before = "\"" + change[0] + "\": " + change[1];
    std::string text = whole;
    ASSERT_NE(text.find(before), std::string::npos) << before;
    text.replace(text.find(before), before.size(), "\"" + change[0] + "\": " + change[2]);
    std::ofstream(file) << text;
    std::string name = change[0], value = change[2], old = change[1];
    std::ranges::replace(name, '_', '-');
    for (std::string* word : {&value, &old}) std::erase(*word, '"');
    expect_refusal(resume, 2,
                   {name + " in " + file.string(), "seen: " + value, "accepted: " + old});
  }
  std::ofstream(file) << whole;
  EXPECT_EQ(run(resume + Words{"--epochs", "1000000", "--dry-run"}).code, 2);
}

TEST_F(ResumeSettings, ADamagedCheckpointGivesWayToTheOneBefore) {
  ASSERT_EQ(run(mlp({"--epochs", "4", "--checkpoint-every", "10", "--keep-last", "3"})).code, 0);
  const fs::path last = demi::checkpoint::find(folder());
  fs::resize_file(last / "model.safetensors", 100);
  const fs::path aside = last.string() + ".damaged";
  const Words resume{"train", "--resume", folder().string(), "--json", "--epochs"};
  const Outcome outcome = run(resume + Words{"5"});
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_THAT(outcome.err,
              HasSubstr(last.filename().string() + " is damaged and is kept as " + aside.string()));
  EXPECT_THAT(outcome.err, HasSubstr("goes on after step "));
  EXPECT_TRUE(fs::exists(aside / "model.safetensors"));
  EXPECT_EQ(run(resume + Words{"6"}).code, 0) << "and it stays so";
  EXPECT_TRUE(fs::exists(aside / "model.safetensors"));
}

TEST_F(ResumeSettings, AutoPassesOverARunOfOtherSettingsAndSaysWhich) {
  begin();
  Outcome outcome = run(mlp({"--epochs", "1", "--lr", "0.5", "--resume", "auto"}));
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_THAT(outcome.err, HasSubstr(folder().string() + " is another: lr is 0.001, not 0.5"));
  EXPECT_TRUE(fs::exists(run_folder("train-mlp-002") / "result.json"));
  EXPECT_FALSE(fs::exists(folder() / "result.json"));
}

TEST_F(ResumeSettings, ANameThatIsEmptyIsRefused) {
  Outcome outcome = run(mlp({"--epochs", "1", "--resume", ""}));
  EXPECT_EQ(outcome.code, 2) << outcome.err;
  EXPECT_THAT(outcome.err, HasSubstr("[--resume] no run is named"));
  setenv("DEMI_RESUME", "", 1);
  outcome = run(mlp({"--epochs", "1"}));
  unsetenv("DEMI_RESUME");
  EXPECT_EQ(outcome.code, 2) << outcome.err;
  EXPECT_FALSE(fs::exists(folder_ / "runs"));
}

// What a killed process was writing; and a file that somebody put elsewhere stays there.
TEST_F(ResumeSettings, LeftoversAreRemovedAndALinkStaysOne) {
  begin({"--steps", "600"});
  for (const char* name : {"result.json.77.tmp", "model.safetensors.77.tmp", "notes.tmp"})
    std::ofstream(folder() / name) << "half";
  fs::rename(folder() / "metrics.jsonl", folder_ / "metrics");
  fs::create_symlink(folder_ / "metrics", folder() / "metrics.jsonl");
  ASSERT_EQ(run({"train", "--resume", folder().string()}).code, 0);
  EXPECT_FALSE(fs::exists(folder() / "result.json.77.tmp"));
  EXPECT_FALSE(fs::exists(folder() / "model.safetensors.77.tmp"));
  EXPECT_TRUE(fs::exists(folder() / "notes.tmp")) << "somebody's own";
  EXPECT_TRUE(fs::is_symlink(folder() / "metrics.jsonl"));
  EXPECT_TRUE(has(folder_ / "metrics", "\"step\":600"));
}

// Files of the process end at so many bytes: what a full disk does, without one.
std::function<void()> files_end_at(rlim_t bytes) {
  return [bytes] {
    signal(SIGXFSZ, SIG_IGN);
    const rlimit limit{bytes, bytes};
    setrlimit(RLIMIT_FSIZE, &limit);
  };
}

TEST_F(Resume, AFullDiskEndsTheRunWhichGoesOnFromTheLastCheckpointOnceThereIsRoom) {
  const Words words = mlp({"--epochs", "40", "--checkpoint-every", "10"});
  ASSERT_EQ(run(words).code, 0);
  const fs::path folder = run_folder("train-mlp-002");
  for (const rlim_t kilobytes : {16, 40, 60}) {
    const Words resume = fs::exists(folder) ? Words{"--resume", folder.string()} : Words{};
    const Outcome outcome = run(words + resume, files_end_at(kilobytes << 10U));
    EXPECT_EQ(outcome.code, 1) << outcome.err;
    EXPECT_THAT(outcome.err, HasSubstr("File too large"));
    EXPECT_THAT(outcome.err, HasSubstr(folder.string())) << "the file is named";
    if (fs::exists(folder / "checkpoints" / "last")) {
      EXPECT_THAT(outcome.err, HasSubstr("go on: demi train --resume " + folder.string()));
      EXPECT_NO_THROW(demi::checkpoint::load(folder));
    } else {
      EXPECT_THAT(outcome.err, Not(HasSubstr("go on:")));
    }
  }
  ASSERT_TRUE(fs::exists(folder / "checkpoints" / "last"));
  const Outcome outcome = run(words + Words{"--resume", folder.string()});
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  expect_same_run(run_folder("train-mlp-001"), folder);
}

// What eval says of a run folder is what it says of the shipped weights: with a moving average, the
// average's.
TEST_F(Resume, ARunFolderStandsForItsLastCheckpointInEval) {
  ASSERT_EQ(run(pictures({"--epochs", "2", "--ema", "0.5", "--limit", "8"})).code, 0);
  const fs::path folder = run_folder("train-fashion-cnn-001");
  const Outcome of_file = run({"eval", (folder / "model.safetensors").string(), "--precision",
                               "bf16", "--json"}),
                of_folder = run({"eval", folder.string(), "--precision", "bf16", "--json"}),
                of_best = run({"eval", (folder / "checkpoints" / "best").string(), "--json"});
  ASSERT_EQ(of_file.code, 0) << of_file.err;
  ASSERT_EQ(of_folder.code, 0) << of_folder.err;
  ASSERT_EQ(of_best.code, 0) << of_best.err;
  const auto a = nlohmann::json::parse(of_file.out), b = nlohmann::json::parse(of_folder.out);
  EXPECT_EQ(a["runs"][0]["test_loss"], b["runs"][0]["test_loss"]);
  EXPECT_EQ(b["trained_in"], "bf16");
  const auto best = demi::checkpoint::load(folder / "checkpoints" / "best");
  EXPECT_TRUE(best.text.contains("demi.epoch") && best.text.contains("demi.test_accuracy"));
  EXPECT_EQ(run({"eval", folder_.string()}).code, 3);
  EXPECT_THAT(run({"eval", folder.string()}).out, HasSubstr("4 examples; trained in bf16"))
      << "all, though it was trained and tested on some";
  EXPECT_THAT(run({"eval", folder.string(), "--limit", "2"}).out, HasSubstr("2 examples"));
  const fs::path data = folder_ / "data", moved = folder_ / "moved";
  fs::rename(data, moved);
  EXPECT_EQ(run({"eval", folder.string()}).code, 3);
  const auto c = json_of({"eval", folder.string(), "--data-dir", moved.string()});
  EXPECT_EQ(c["runs"][1]["test_loss"], b["runs"][0]["test_loss"]);
  EXPECT_EQ(c["runs"][1]["difference_to_fp32"], c["runs"][1]["test_accuracy"].get<double>() -
                                                    c["runs"][0]["test_accuracy"].get<double>());
  const Outcome negative = run({"eval", folder.string(), "--limit", "-1"});
  EXPECT_EQ(negative.code, 2);
  EXPECT_THAT(negative.err, HasSubstr("limit is out of range; seen: -1"));
}

}  // namespace
}  // namespace cli_testing
