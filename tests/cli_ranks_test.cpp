// Several ranks of the built `demi` (its path is in DEMI_PROGRAM) on this machine.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>

#include <chrono>
#include <cmath>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>
#include <string>
#include <tuple>
#include <vector>

#include "demi/checkpoint/checkpoint.h"
#include "demi/core/load_testing.h"
#include "demi/core/wait_until_testing.h"
#include "demi/distributed/c10d.h"
#include "demi/distributed/port_testing.h"
#include "demi/distributed/signs_testing.h"
#include "lab/recipes/same_run_testing.h"
#include "tests/cli_testing.h"
#include "tests/small_recipes.h"

namespace cli_testing {
namespace {

using demi::wait_until;
using demi::testing::HeldPort;
using ::testing::AllOf;
using ::testing::AnyOf;
using ::testing::ContainsRegex;
using ::testing::Each;
using ::testing::IsEmpty;

class CliRanks : public Cli {
 protected:
  // Five layers of 24, batches of 16 rows of all ranks together.
  static Words mlp(int ranks, const Words& more = {}, const char* epochs = "2") {
    Words words{"train", "mlp", "--in", "24", "--out", "24", "--device", "cpu", "--json"};
    const Words own{"--batches",    "20",
                    "--epochs",     epochs,
                    "--ranks",      std::to_string(ranks),
                    "--batch-size", std::to_string(16 / ranks)};
    words.insert(words.end(), own.begin(), own.end());
    words.insert(words.end(), more.begin(), more.end());
    return words;
  }

  fs::path run_folder(const std::string& name) const { return folder_ / "runs" / name; }

  std::vector<double> losses(const std::string& run) const {
    std::vector<double> all;
    std::ifstream file(run_folder(run) / "metrics.jsonl");
    for (std::string line; std::getline(file, line);) {
      const auto entry = nlohmann::json::parse(line);
      if (entry.contains("step") && entry.contains("loss")) all.push_back(entry["loss"]);
    }
    return all;
  }

  static int count_of(const std::string& part, const std::string& text) {
    int count = 0;
    for (std::size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1))
      ++count;
    return count;
  }

  // The processes that `launcher` has started, by rank.
  static std::map<int, pid_t> ranks_of(pid_t launcher) {
    std::map<int, pid_t> found;
    const std::string id = std::to_string(launcher);
    std::istringstream children(slurp("/proc/" + id + "/task/" + id + "/children"));
    for (pid_t child = 0; children >> child;) {
      const std::string variables = slurp("/proc/" + std::to_string(child) + "/environ");
      for (int rank = 0; rank < 8; ++rank)
        if (variables.find(std::string("\0RANK=", 6) + std::to_string(rank) + '\0') !=
            std::string::npos)
          found[rank] = child;
    }
    return found;
  }

  // What ranks say and do of threads depends on it. A test may set it in a process of its own.
  CliRanks() {
    unsetenv("OMP_NUM_THREADS");
    starts_for_real_ = true;  // ranks start /proc/self/exe
  }

  // A run without an end, which has saved a checkpoint.
  pid_t start_long_run(int ranks, std::map<int, pid_t>& processes, Words more = {},
                       const char* epochs = "1000000", const std::string& name = "train-mlp-001") {
    more.insert(more.end(), {"--checkpoint-every", "20"});
    const pid_t launcher = start(mlp(ranks, more, epochs));
    EXPECT_TRUE(wait_until([&] {
      if (has_ended(launcher)) return true;
      processes = ranks_of(launcher);
      return std::ssize(processes) == ranks &&
             fs::exists(run_folder(name) / "checkpoints" / "last");
    })) << slurp(folder_ / "err");
    return launcher;
  }

  // `limit`: on a machine without other work.
  Outcome finish_within(pid_t child, std::chrono::seconds limit) {
    EXPECT_TRUE(wait_until([&] { return has_ended(child); }, demi::under_load(limit)))
        << "it hangs";
    if (!has_ended(child)) kill(child, SIGKILL);
    return finish(child);
  }

  static void expect_gone(const std::map<int, pid_t>& processes) {
    for (const auto& [rank, process] : processes)
      EXPECT_NE(kill(process, 0), 0) << "rank " << rank << " is left";
  }

  // Checksums and all.
  void expect_a_whole_checkpoint() const {
    const auto saved = demi::checkpoint::load(run_folder("train-mlp-001") / "checkpoints");
    EXPECT_GE(saved.numbers.at("progress").at("step"), 20);
  }
};

// The rows of a step are the same, so a loss differs by what sums over them, over 24 features and
// over the ranks round, in each of five layers; the steps before add theirs, and the MLP is well
// conditioned at the beginning of training: no factor of more than 2 a step of 100.
TEST_F(CliRanks, TrainAsOneProcess) {
  const Outcome one = run(mlp(1)), two = run(mlp(2));
  ASSERT_EQ(one.code, 0) << one.err;
  ASSERT_EQ(two.code, 0) << two.err;
  const auto alone = losses("train-mlp-001"), together = losses("train-mlp-002");
  ASSERT_EQ(alone.size(), 40U);
  ASSERT_EQ(together.size(), alone.size());
  for (std::size_t i = 0; i < alone.size(); ++i)
    EXPECT_NEAR(together[i], alone[i],
                alone[i] * 5 * (16 + 24 + 2) * 0x1p-24 * static_cast<double>(i + 1))
        << "step " << i + 1;
  EXPECT_FALSE(fs::exists(run_folder("train-mlp-003")));  // rank 0 alone makes one
  const auto said = nlohmann::json::parse(two.out);
  const auto of_one = nlohmann::json::parse(one.out);
  EXPECT_EQ(said["training_examples"], of_one["training_examples"]);
  EXPECT_THAT(two.err, HasSubstr("2 ranks with"));
}

// With batch normalisation over both ranks, augmentation aside. In FP64, where 1e-9 is 10^7
// roundings: enough for every sum of these few steps, and no room for a figure of one rank alone.
TEST_F(CliRanks, TheMainJobHasTheCurveOfOneRank) {
  small_recipes::write_data("fashion-mnist", folder_ / "data");
  const auto words = [&](const char* ranks, const char* batch) {
    return Words{"train",    "fashion-cnn", "--data-dir",        (folder_ / "data").string(),
                 "--ranks",  ranks,         "--batch-size",      batch,
                 "--epochs", "2",           "--test-batch-size", "3",
                 "--device", "cpu",         "--precision",       "fp64",
                 "--json"};
  };
  const Outcome one = run(words("1", "4")), two = run(words("2", "2"));
  ASSERT_EQ(one.code, 0) << one.err;
  ASSERT_EQ(two.code, 0) << two.err;
  const auto alone = losses("train-fashion-cnn-001"), together = losses("train-fashion-cnn-002");
  ASSERT_GT(alone.size(), 2U);
  ASSERT_EQ(together.size(), alone.size());
  for (std::size_t i = 0; i < alone.size(); ++i)
    EXPECT_NEAR(together[i], alone[i], 1e-9 * alone[i]) << "step " << i + 1;
  const auto of_one = nlohmann::json::parse(one.out), of_two = nlohmann::json::parse(two.out);
  EXPECT_EQ(of_two["runs"][0]["test_accuracy"], of_one["runs"][0]["test_accuracy"]);
  EXPECT_EQ(of_two["test_examples"], of_one["test_examples"]);
}

// A run of four ranks, started where the threads of each are decided, is stopped, goes on with two,
// and ends with one.
TEST_F(CliRanks, GoOnWithFewer) {
  const Outcome unbroken = run(mlp(1));
  ASSERT_EQ(unbroken.code, 0) << unbroken.err;
  const Outcome four =
      run(mlp(4, {"--steps", "13"}), [] { setenv("OMP_NUM_THREADS", "1", /*overwrite=*/1); });
  ASSERT_EQ(four.code, 0) << four.err;
  EXPECT_THAT(four.err, Not(HasSubstr("ranks with")));
  const std::string folder = run_folder("train-mlp-002").string();
  const Outcome two = run({"train", "--resume", folder, "--ranks", "2", "--steps", "27"});
  ASSERT_EQ(two.code, 0) << two.err;
  const Outcome last = run({"train", "--resume", folder, "--ranks", "1", "--steps", "40"});
  ASSERT_EQ(last.code, 0) << last.err;
  const auto alone = losses("train-mlp-001"), together = losses("train-mlp-002");
  ASSERT_EQ(together.size(), 40U);
  for (std::size_t i = 0; i < alone.size(); ++i)
    EXPECT_NEAR(together[i], alone[i],
                alone[i] * 5 * (16 + 24 + 4) * 0x1p-24 * static_cast<double>(i + 1));
  const Outcome three = run({"train", "--resume", folder, "--ranks", "3"});
  EXPECT_EQ(three.code, 2);
  EXPECT_THAT(three.err, HasSubstr("a divisor of 16"));
}

// The bits of ranks that share nothing; then one rank goes on, which has nobody to share with, and
// two again.
TEST_F(CliRanks, ShareTheOptimizersState) {
  const Outcome whole = run(mlp(2, {"--optimizer", "adamw"}));
  ASSERT_EQ(whole.code, 0) << whole.err;
  const Outcome shared = run(mlp(2, {"--optimizer", "adamw", "--shard-optimizer"}));
  ASSERT_EQ(shared.code, 0) << shared.err;
  EXPECT_EQ(losses("train-mlp-001").size(), 40U);
  EXPECT_EQ(losses("train-mlp-002"), losses("train-mlp-001"));
  ASSERT_EQ(run(mlp(2, {"--optimizer", "adamw", "--shard-optimizer", "--steps", "13"})).code, 0);
  const std::string folder = run_folder("train-mlp-003").string();
  const Outcome one = run({"train", "--resume", folder, "--ranks", "1", "--steps", "27"});
  ASSERT_EQ(one.code, 0) << one.err;
  const Outcome two =
      run({"train", "--resume", folder, "--ranks", "2", "--shard-optimizer", "--steps", "40"});
  ASSERT_EQ(two.code, 0) << two.err;
  EXPECT_EQ(losses("train-mlp-003").size(), 40U);
}

// Each rank reads them; the rest is as from weights of their own.
TEST_F(CliRanks, StartFromSavedWeights) {
  const auto with = [](int ranks, const Words& more) {
    Words words = mlp(ranks, {"--optimizer", "adamw", "--steps", "8"});
    words.insert(words.end(), more.begin(), more.end());
    return words;
  };
  ASSERT_EQ(run(with(1, {})).code, 0);
  const std::string first = run_folder("train-mlp-001").string();
  const Words from{"--from", first, "--from-state", "--seed", "7"};
  Words shared = from;
  shared.emplace_back("--shard-optimizer");
  for (const Words& words : {with(1, from), with(2, from), with(2, shared)}) {
    const Outcome outcome = run(words);
    ASSERT_EQ(outcome.code, 0) << outcome.err;
    EXPECT_EQ(count_of("starts from " + first, outcome.err), 1)
        << "rank 0 says it: " << outcome.err;
  }
  const auto alone = losses("train-mlp-002"), together = losses("train-mlp-003");
  ASSERT_EQ(alone.size(), 8U);
  ASSERT_EQ(together.size(), 8U);
  for (std::size_t i = 0; i < alone.size(); ++i)
    EXPECT_NEAR(together[i], alone[i],
                alone[i] * 5 * (16 + 24 + 2) * 0x1p-24 * static_cast<double>(i + 1));
  EXPECT_EQ(losses("train-mlp-004"), together) << "bit for bit";
  const auto x = demi::checkpoint::load(run_folder("train-mlp-004")),
             y = demi::checkpoint::load(run_folder("train-mlp-003"));
  same_run::expect_same_tensors(x.model, y.model);
  same_run::expect_same_tensors(x.state, y.state);
}

// On a CPU the list is a number of ranks; a run that began with it goes on with --ranks alone.
TEST_F(CliRanks, OneForEachDevice) {
  const auto with = [&](const Words& ranks) {
    Words words{"train", "mlp",          "--in",     "24",      "--out",
                "24",    "--json",       "--epochs", "2",       "--batches",
                "20",    "--batch-size", "8",        "--steps", "20"};
    words.insert(words.end(), ranks.begin(), ranks.end());
    return run(words);
  };
  const Outcome two = with({"--device", "cpu", "--ranks", "2"});
  ASSERT_EQ(two.code, 0) << two.err;
  const Outcome devices = with({"--devices", "cpu,cpu"});
  ASSERT_EQ(devices.code, 0) << devices.err;
  EXPECT_THAT(devices.err, HasSubstr("2 ranks with"));
  EXPECT_EQ(losses("train-mlp-002"), losses("train-mlp-001"));
  const std::string folder = run_folder("train-mlp-002").string();
  EXPECT_EQ(run({"train", "--resume", folder, "--steps", "30"}).code, 0);
  EXPECT_EQ(run({"train", "--resume", folder, "--steps", "40", "--ranks", "1"}).code, 0);
  EXPECT_EQ(losses("train-mlp-002").size(), 40U);

  for (const Words& ranks :
       std::vector<Words>{{"--ranks", "3", "--devices", "cpu,cpu"}, {"--devices", "cpu,cuda:0"}}) {
    const Outcome wrong = with(ranks);
    EXPECT_EQ(wrong.code, 2) << wrong.err;
    EXPECT_THAT(wrong.err, HasSubstr("--devices"));
  }
  const Outcome missing = run({"train", "mlp", "--devices", "cuda:0,cuda:1"},
                              [] { setenv("DEMI_CUDA_LIBRARY", "off", 1); });
  EXPECT_EQ(missing.code, 4);
  EXPECT_THAT(missing.err, HasSubstr("cuda:0"));
  const Outcome stronger =
      run({"train", "mlp", "--in", "24", "--out", "24", "--dry-run", "--devices", "cpu"},
          [] { setenv("DEMI_RANKS", "3", 1); });
  EXPECT_EQ(stronger.code, 0) << stronger.err;
}

TEST_F(CliRanks, OneThatIsKilledEndsAll) {
  for (const int dies : {1, 0}) {
    std::map<int, pid_t> processes;
    const pid_t launcher = start_long_run(3, processes);
    ASSERT_EQ(processes.size(), 3U);
    kill(processes[dies], SIGKILL);
    const Outcome outcome = finish_within(launcher, std::chrono::seconds(30));
    EXPECT_EQ(outcome.code, 4) << outcome.err;
    EXPECT_THAT(outcome.err, HasSubstr("rank " + std::to_string(dies) + " was ended by signal 9"));
    // It says what it found, and all ranks know where rank 0 saved.
    EXPECT_THAT(outcome.err, ContainsRegex("rank 2: .*the last checkpoint is that of step [0-9]+"));
    // Rank 0 does, or if it is the one that has died, the process that started it. Once.
    const std::string folder = run_folder("train-mlp-001").string();
    EXPECT_EQ(count_of("kept: " + folder + "/checkpoints/step-", outcome.err), 1) << outcome.err;
    EXPECT_EQ(count_of("go on: demi train --resume " + folder + "\n", outcome.err), 1)
        << outcome.err;
    expect_gone(processes);
    expect_a_whole_checkpoint();
    fs::remove_all(folder_ / "runs");
  }
}

// Ranks that no `demi` started: the next rank says it.
TEST_F(CliRanks, WithoutALauncherOfDemisTheNextRankNamesTheCheckpoint) {
  const HeldPort port;
  const auto as_rank = [&](int rank) {
    return [&port, rank] {
      setenv("RANK", std::to_string(rank).c_str(), 1);
      setenv("WORLD_SIZE", "2", 1);
      setenv("LOCAL_RANK", std::to_string(rank).c_str(), 1);
      if (rank == 0) (void)!freopen("/dev/null", "w", stderr);
      setenv("MASTER_ADDR", "127.0.0.1", 1);
      setenv("MASTER_PORT", port.text().c_str(), 1);
    };
  };
  const Words words = mlp(2, {"--checkpoint-every", "20"}, "1000000");
  const pid_t first = start(words, as_rank(0)), second = start(words, as_rank(1));
  const fs::path folder = run_folder("train-mlp-001");
  EXPECT_TRUE(wait_until([&] { return fs::exists(folder / "checkpoints" / "last"); }));
  kill(first, SIGKILL);
  const Outcome outcome = finish_within(second, std::chrono::seconds(30));
  finish(first);
  EXPECT_EQ(outcome.code, 4) << outcome.err;
  EXPECT_THAT(outcome.err, AllOf(HasSubstr("kept: " + folder.string() + "/checkpoints/step-"),
                                 HasSubstr("go on: demi train --resume " + folder.string())));
}

// The store that the launcher of this rank serves.
std::shared_ptr<demi::distributed::Store> store_of(pid_t rank) {
  const std::string variables = slurp("/proc/" + std::to_string(rank) + "/environ");
  const std::string name("\0MASTER_PORT=", 13);
  const int port = std::stoi(variables.substr(variables.find(name) + name.size()));
  return demi::distributed::reach_store(
      {.host = "127.0.0.1", .port = port, .served_by_agent = true, .named = "the launcher's"},
      /*serve=*/false, std::chrono::minutes(2));
}

// One rank is held before a collective, so that the other waits in it when it is killed.
TEST_F(CliRanks, OneThatIsKilledInACollectiveEndsAll) {
  std::map<int, pid_t> processes;
  const pid_t launcher = start_long_run(2, processes);
  ASSERT_EQ(processes.size(), 2U);
  const auto store = store_of(processes[1]);
  kill(processes[0], SIGSTOP);
  EXPECT_TRUE(demi::testing::waits_in_a_collective(*store, 1, "session-1"));  // the program's name
  kill(processes[1], SIGKILL);
  kill(processes[0], SIGCONT);
  const Outcome outcome = finish_within(launcher, std::chrono::seconds(30));
  EXPECT_EQ(outcome.code, 4) << outcome.err;
  EXPECT_THAT(outcome.err, HasSubstr("rank 1"));
  expect_gone(processes);
  expect_a_whole_checkpoint();
}

TEST_F(CliRanks, AreStoppedByOneSignal) {
  std::map<int, pid_t> processes;
  const pid_t launcher = start_long_run(2, processes);
  kill(launcher, SIGTERM);
  const Outcome outcome = finish_within(launcher, std::chrono::seconds(30));
  EXPECT_EQ(outcome.code, 128 + SIGTERM) << outcome.err;
  EXPECT_THAT(outcome.err, HasSubstr("go on: demi train --resume"));
  expect_gone(processes);
  EXPECT_FALSE(fs::exists(run_folder("train-mlp-001") / "result.json"));
}

// systemd and Slurm signal each process of a service or a step, and the launcher passes it on.
TEST_F(CliRanks, AreStoppedBySignalsToAll) {
  std::map<int, pid_t> processes;
  const pid_t launcher = start_long_run(2, processes);
  ASSERT_EQ(processes.size(), 2U);
  for (const pid_t process : {launcher, processes[0], processes[1]}) kill(process, SIGTERM);
  const Outcome outcome = finish_within(launcher, std::chrono::seconds(30));
  EXPECT_EQ(outcome.code, 128 + SIGTERM) << outcome.err;
  EXPECT_THAT(outcome.err, HasSubstr("go on: demi train --resume"));
  expect_gone(processes);
  expect_a_whole_checkpoint();
}

// What the kernel says of a process (proc_pid_status(5)), without the blanks before it.
std::string status_of(pid_t process, const std::string& name) {
  std::ifstream status("/proc/" + std::to_string(process) + "/status");
  for (std::string line; std::getline(status, line);)
    if (line.starts_with(name + ":\t")) return line.substr(name.size() + 2);
  return "";
}

bool is_stopped(pid_t process) { return status_of(process, "State").starts_with("T"); }

// Whether a process has still to take the signal.
bool is_pending(pid_t process, int number) {
  const std::string signals = status_of(process, "ShdPnd");
  return !signals.empty() && (std::stoull(signals, nullptr, 16) >> (number - 1) & 1) != 0;
}

// Ranks that do not come to the end of their step.
TEST_F(CliRanks, AreKilledByTheSecondCtrlC) {
  std::map<int, pid_t> processes;
  const pid_t launcher = start_long_run(2, processes);
  ASSERT_EQ(processes.size(), 2U);
  for (const auto& [rank, process] : processes) {
    kill(process, SIGSTOP);
    ASSERT_TRUE(wait_until([id = process] { return is_stopped(id); })) << rank;
  }
  kill(launcher, SIGINT);
  for (const auto& [rank, process] : processes)
    ASSERT_TRUE(wait_until([id = process] { return is_pending(id, SIGINT); })) << rank;
  kill(launcher, SIGINT);
  const Outcome outcome = finish_within(launcher, std::chrono::seconds(30));
  EXPECT_EQ(outcome.code, 128 + SIGINT) << outcome.err;
  for (const auto& [rank, process] : processes)  // init waits for them
    EXPECT_TRUE(wait_until([id = process] { return kill(id, 0) != 0; })) << rank;
}

// All of them take part in what rank 0 saves, also if the signal came to another one alone.
TEST_F(CliRanks, ThatShareTheStateAreStoppedWithAllOfIt) {
  const Words shared{"--optimizer", "adamw", "--shard-optimizer"};
  const Outcome unbroken = run(mlp(2, shared, "60"));
  ASSERT_EQ(unbroken.code, 0) << unbroken.err;
  ASSERT_EQ(losses("train-mlp-001").size(), 1200U);
  for (const auto& [number, to_all, name] :
       {std::tuple{SIGINT, true, "train-mlp-002"}, std::tuple{SIGTERM, false, "train-mlp-003"}}) {
    std::map<int, pid_t> processes;
    const pid_t launcher = start_long_run(2, processes, shared, "60", name);
    ASSERT_EQ(processes.size(), 2U);
    kill(to_all ? launcher : processes[1], number);
    const Outcome stopped = finish_within(launcher, std::chrono::seconds(30));
    EXPECT_EQ(stopped.code, 128 + number) << stopped.err;
    EXPECT_THAT(stopped.err, HasSubstr("go on: demi train --resume"));
    expect_gone(processes);
    const std::size_t taken = losses(name).size();
    EXPECT_LT(taken, 1200U);
    const auto saved = demi::checkpoint::load(run_folder(name) / "checkpoints");
    EXPECT_EQ(saved.numbers.at("progress").at("step"), static_cast<double>(taken));
    const Outcome resumed = run({"train", "--resume", run_folder(name).string()});
    ASSERT_EQ(resumed.code, 0) << resumed.err;
    EXPECT_EQ(losses(name), losses("train-mlp-001"));
  }
}

// Rank 0 alone cannot write: the other one, which waits in the next step, does not take part in
// saving the runs that have not failed.
TEST_F(CliRanks, ThatShareTheStateEndIfOneCannotSave) {
  const pid_t launcher = start({"compare",
                                "mlp",
                                "--in",
                                "24",
                                "--out",
                                "24",
                                "--device",
                                "cpu",
                                "--batches",
                                "20",
                                "--batch-size",
                                "8",
                                "--epochs",
                                "2",
                                "--ranks",
                                "2",
                                "--interleave=3",
                                "--optimizer",
                                "adamw",
                                "--shard-optimizer",
                                "--checkpoint-every",
                                "5"},
                               [] {
                                 const rlimit smaller_than_the_weights{10'000, 10'000};
                                 signal(SIGXFSZ, SIG_IGN);
                                 setrlimit(RLIMIT_FSIZE, &smaller_than_the_weights);
                               });
  const Outcome outcome = finish_within(launcher, std::chrono::seconds(60));
  EXPECT_THAT(outcome.code, AnyOf(1, 4)) << outcome.err;  // of the rank that ends first
  EXPECT_THAT(outcome.err, HasSubstr("File too large"));
  EXPECT_THAT(outcome.err, HasSubstr("rank 0 left the group"));
}

TEST_F(CliRanks, EndWithTheirLauncher) {
  std::map<int, pid_t> processes;
  const pid_t launcher = start_long_run(2, processes);
  kill(launcher, SIGKILL);
  finish(launcher);
  for (const auto& [rank, process] : processes)
    EXPECT_TRUE(wait_until([process = process] { return kill(process, 0) != 0; },
                           demi::under_load(std::chrono::seconds(30))))
        << rank;
}

// As torchrun starts them.
TEST_F(CliRanks, ThatDifferAreNamed) {
  const HeldPort port;
  const auto as_rank = [&](int rank) {
    return [&port, rank] {
      setenv("RANK", std::to_string(rank).c_str(), 1);
      setenv("WORLD_SIZE", "2", 1);
      setenv("MASTER_ADDR", "127.0.0.1", 1);
      setenv("MASTER_PORT", port.text().c_str(), 1);
    };
  };
  const Words same{"train", "mlp",          "--in", "24",       "--out",
                   "24",    "--batch-size", "8",    "--device", "cpu"};
  Words other = same;
  other.insert(other.end(), {"--lr", "0.5"});
  const pid_t second = start(other, as_rank(1));
  const Outcome first = run(same, as_rank(0));
  EXPECT_EQ(finish(second).code, 2);
  EXPECT_EQ(first.code, 2);
  EXPECT_THAT(first.err, AllOf(HasSubstr("lr 0.5 on rank 1"), HasSubstr("as on rank 0")));

  Words three = same;
  three.insert(three.end(), {"--ranks", "3"});
  const Outcome contradiction = run(three, as_rank(0));
  EXPECT_EQ(contradiction.code, 2);
  EXPECT_THAT(contradiction.err, HasSubstr("RANK=0, WORLD_SIZE=2"));
}

// Its inodes among the sockets that listen in the kernel's table: local addresses in hexadecimal.
std::vector<std::string> listening_addresses(pid_t process) {
  std::set<std::string> own;
  for (const auto& entry : fs::directory_iterator("/proc/" + std::to_string(process) + "/fd")) {
    std::error_code gone;
    const std::string target = fs::read_symlink(entry.path(), gone).string();
    if (target.starts_with("socket:[")) own.insert(target.substr(8, target.size() - 9));
  }
  std::vector<std::string> found;
  for (const char* table : {"/net/tcp", "/net/tcp6"}) {
    std::istringstream lines(slurp("/proc/" + std::to_string(process) + table));
    std::string line;
    std::getline(lines, line);  // the heading
    while (std::getline(lines, line)) {
      std::istringstream words(line);
      std::vector<std::string> word{std::istream_iterator<std::string>(words), {}};
      if (word.size() > 9 && word[3] == "0A" && own.contains(word[9]))
        found.push_back(word[1].substr(0, word[1].find(':')));
    }
  }
  return found;
}

// Neither the store nor Gloo asks who connects.
TEST_F(CliRanks, OfOneMachineListenOnTheLoopbackInterfaceAlone) {
  std::map<int, pid_t> processes;
  const pid_t launcher = start_long_run(2, processes);
  ASSERT_EQ(processes.size(), 2U);
  const auto is_loopback =
      AnyOf("0100007F", "00000000000000000000000001000000", "0000000000000000FFFF00000100007F");
  const std::vector<std::string> of_store = listening_addresses(launcher);
  EXPECT_THAT(of_store, AllOf(Not(IsEmpty()), Each(is_loopback)));
  for (const auto& [rank, process] : processes)
    EXPECT_THAT(listening_addresses(process), AllOf(Not(IsEmpty()), Each(is_loopback))) << rank;
  kill(launcher, SIGTERM);
  const Outcome outcome = finish_within(launcher, std::chrono::seconds(60));
  // Rank 0 alone says how to go on; nothing is said of weights that were broadcast.
  EXPECT_EQ(count_of("kept: ", outcome.err), 1) << outcome.err;
}

TEST_F(CliRanks, SayWhatIsLeftOutAndWarnOfNothing) {
  small_recipes::write_data("fashion-mnist", folder_ / "data");
  const auto words = [&](const char* limit, const char* ranks) {
    return Words{"train",    "fashion-cnn", "--data-dir",   (folder_ / "data").string(),
                 "--ranks",  ranks,         "--batch-size", "2",
                 "--limit",  limit,         "--epochs",     "1",
                 "--device", "cpu",         "--json"};
  };
  const Outcome odd = run(words("5", "2"));
  ASSERT_EQ(odd.code, 0) << odd.err;
  EXPECT_THAT(odd.err, HasSubstr("1 of 5 training examples is left out of each epoch"));
  EXPECT_THAT(odd.err, Not(HasSubstr("initial weights")));
  const Outcome few = run(words("1", "2"));
  EXPECT_EQ(few.code, 2) << few.err;
  EXPECT_THAT(few.err, HasSubstr("fewer examples of training than ranks; seen: 1 for 2 ranks"));
}

TEST_F(CliRanks, WrongUse) {
  const Outcome batch = run({"train", "mlp", "--ranks", "2", "--batch-size", "auto"});
  EXPECT_EQ(batch.code, 2);
  EXPECT_THAT(batch.err, HasSubstr("each of several ranks would find a batch size of its own"));
  const Outcome alone = run({"train", "mlp", "--shard-optimizer"});
  EXPECT_EQ(alone.code, 2);
  EXPECT_THAT(alone.err, AllOf(HasSubstr("one process has nobody to share the optimizer's state"),
                               HasSubstr("add --ranks 2 or more")));
  const Outcome none = run({"train", "mlp", "--ranks", "0"});
  EXPECT_EQ(none.code, 2);
  const Outcome missing = run({"train", "mlp"}, [] { setenv("RANK", "1", 1); });
  EXPECT_EQ(missing.code, 4);
  EXPECT_THAT(missing.err, HasSubstr("WORLD_SIZE is not set"));
  const Outcome layers = run({"compare", "mlp", "--ranks", "2", "--layers"});
  EXPECT_EQ(layers.code, 2);
}

TEST_F(CliRanks, CompareRunsInTurns) {
  const Outcome outcome =
      run({"compare", "mlp", "--in", "24", "--out", "24", "--device", "cpu", "--json", "--batches",
           "8", "--batch-size", "8", "--epochs", "1", "--ranks", "2", "--interleave=3"});
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_EQ(nlohmann::json::parse(outcome.out)["runs"].size(), 2U);
}

}  // namespace
}  // namespace cli_testing
