// The program where something around it goes wrong: closed or full streams, readers that leave,
// signals at bad moments, settings and files that cannot be.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>

#include "demi/core/wait_until_testing.h"
#include "tests/cli_testing.h"

namespace cli_testing {
namespace {

class Trouble : public Cli {
 protected:
  static std::vector<std::string> small_run(std::vector<std::string> more = {}) {
    std::vector<std::string> arguments{"train",     "mlp", "--in",         "8", "--out",    "8",
                                       "--batches", "4",   "--batch-size", "4", "--epochs", "2",
                                       "--device",  "cpu"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return arguments;
  }

  fs::path run_folder() const { return folder_ / "runs" / "train-mlp-001"; }

  // Every line of metrics.jsonl is JSON, and weights are there.
  void expect_whole_run() {
    std::ifstream metrics(run_folder() / "metrics.jsonl");
    int lines = 0;
    for (std::string line; std::getline(metrics, line); ++lines)
      EXPECT_TRUE(nlohmann::json::accept(line)) << line;
    EXPECT_EQ(lines, 2 * 4 + 2);
    EXPECT_TRUE(fs::exists(run_folder() / "model.safetensors"));
    EXPECT_TRUE(fs::exists(run_folder() / "checkpoints" / "last"));
  }

  // True once the program has its signal handlers and sleeps, as one does that opens a pipe.
  static bool waits(pid_t child) {
    const std::string status = slurp("/proc/" + std::to_string(child) + "/status");
    const std::size_t caught = status.find("SigCgt:\t");
    return caught != std::string::npos && status.find("State:\tS") != std::string::npos &&
           (std::stoull(status.substr(caught + 8), nullptr, 16) >> (SIGTERM - 1) & 1) != 0;
  }

  // Waits until the file is there.
  static bool appears(const fs::path& file) {
    return demi::wait_until([&] { return fs::exists(file); });
  }
};

TEST_F(Trouble, ClosedStreamsGetNothingIntoTheRunsFiles) {
  const Outcome outcome = run(small_run(), [] {
    for (const int descriptor : {0, 1, 2}) close(descriptor);
  });
  EXPECT_EQ(outcome.code, 0);
  expect_whole_run();
  for (const auto& entry : fs::recursive_directory_iterator(run_folder()))
    if (entry.path().filename().string().starts_with("events.")) {
      EXPECT_THAT(slurp(entry.path()), Not(HasSubstr("epoch 1"))) << entry.path();
    }
}

TEST_F(Trouble, AClosedStderrAloneToo) {
  const Outcome outcome = run(small_run({"--json"}), [] { close(2); });
  EXPECT_EQ(outcome.code, 0);
  EXPECT_TRUE(nlohmann::json::accept(outcome.out)) << outcome.out;
  expect_whole_run();
}

TEST_F(Trouble, ResultsThatCannotBeWrittenAreAFailure) {
  const auto full = [] { dup2(open("/dev/full", O_WRONLY), 1); };
  for (const auto& arguments : std::vector<std::vector<std::string>>{
           small_run(), small_run({"--json"}), {"train", "--list"}, {"policy"}, {"--help"}}) {
    const Outcome outcome = run(arguments, full);
    EXPECT_EQ(outcome.code, 1) << arguments[0];
    EXPECT_THAT(outcome.err, HasSubstr("No space left on device")) << arguments[0];
  }
}

// A pipe whose reader has left.
void into_a_broken_pipe(int descriptor) {
  int ends[2];
  if (pipe(ends) != 0) _exit(126);
  close(ends[0]);
  dup2(ends[1], descriptor);
}

TEST_F(Trouble, ARunGoesOnWhereNobodyReadsItsProgress) {
  const Outcome outcome = run(small_run(), [] { into_a_broken_pipe(2); });
  EXPECT_EQ(outcome.code, 0);
  EXPECT_THAT(outcome.out, HasSubstr("mlp"));
  expect_whole_run();
}

TEST_F(Trouble, AReaderOfResultsThatLeavesIsNoNews) {
  const Outcome outcome = run({"policy"}, [] { into_a_broken_pipe(1); });
  EXPECT_EQ(outcome.code, 128 + SIGPIPE);
  EXPECT_EQ(outcome.err, "");
}

TEST_F(Trouble, ResultsThatCannotBeWrittenDoNotHideAFailure) {
  const auto nan = small_run({"--lr", "1e30"});
  EXPECT_EQ(run(nan, [] { into_a_broken_pipe(1); }).code, 1);
  auto endless = small_run();
  *std::ranges::find(endless, "2") = "1000000";  // epochs
  const pid_t child = start(endless, [] { dup2(open("/dev/full", O_WRONLY), 1); });
  ASSERT_TRUE(appears(run_folder().parent_path() / "train-mlp-002" / "metrics.jsonl"));
  kill(child, SIGINT);
  EXPECT_EQ(finish(child).code, 128 + SIGINT);
}

TEST_F(Trouble, ConfigFilesThatAreNoneAreUsageErrors) {
  const auto with = [&](const std::string& text) {
    std::ofstream(folder_ / "c.json") << text;
    return run({"train", "--config", (folder_ / "c.json").string()});
  };
  const Outcome folder = run({"train", "--config", folder_.string()});
  EXPECT_EQ(folder.code, 2) << folder.err;
  EXPECT_THAT(folder.err, HasSubstr("is a folder"));
  for (const char* text : {R"({"recipe": 3})", R"({"recipe": ["mlp"]})", "", "[]", "{", "3"}) {
    const Outcome outcome = with(text);
    EXPECT_EQ(outcome.code, 2) << text << ": " << outcome.err;
    EXPECT_THAT(outcome.err, Not(HasSubstr("json.exception.type"))) << text;
  }
}

// As for a folder of somebody else, which a test that runs as root may look into.
TEST_F(Trouble, APathThatTheSystemDoesNotFollowIsSaidWithTheSystemsReason) {
  for (const char* name : {"loop", "loop.pt2"}) fs::create_symlink(name, folder_ / name);
  const std::string loop = (folder_ / "loop").string(), text = (folder_ / "text").string();
  std::ofstream(text) << std::string(1000, 'a');
  const auto expect = [&](const Words& words, int code) {
    const Outcome outcome = run(words);
    EXPECT_EQ(outcome.code, code) << words.front() << ": " << outcome.err;
    EXPECT_THAT(outcome.err, AllOf(HasSubstr("demi: ["), HasSubstr(loop),
                                   HasSubstr("Too many levels of symbolic links"),
                                   Not(HasSubstr("filesystem error"))));
  };
  expect({"train", "mlp", "--config", loop}, 2);
  expect({"train", "mlp", "--resume", loop}, 3);
  expect({"train", "mlp", "--in", "8", "--out", "8", "--from", loop}, 3);
  expect({"inspect", loop}, 3);
  expect({"inspect", loop + ".pt2"}, 3);
  expect({"inspect", "--diff", loop, loop}, 3);
  expect({"eval", loop}, 3);
  expect({"generate", loop}, 3);
  expect({"predict", loop, "x"}, 3);
  expect({"train", "gpt-shakespeare", "--data", "text", "--train-file", text, "--tokenizer", loop},
         3);
  expect({"train", "gpt-shakespeare", "--data", "text", "--train-file", loop}, 3);
  expect({"train", "gpt-shakespeare", "--data", "tokens", "--vocabulary-size", "9", "--train-file",
          loop},
         3);
}

TEST_F(Trouble, NumbersBeyondEveryMemoryAreUsageErrors) {
  for (const auto& much : std::vector<std::vector<std::string>>{
           {"train", "mlp", "--in", "9223372036854775807"},
           {"train", "mlp", "--in", "99999999999999999999"},
           {"train", "mlp", "--in", "2147483647", "--batches", "2147483647"}}) {
    const Outcome outcome = run(much);
    EXPECT_EQ(outcome.code, 2) << much[3] << ": " << outcome.err;
    EXPECT_THAT(outcome.err, HasSubstr("--in")) << much[3];
  }
}

TEST_F(Trouble, AScheduleThatEndsBeforeTrainingDoesIsRefusedBeforeDataAreRead) {
  for (const char* schedule : {"one-cycle", "linear", "cosine"}) {
    const Outcome outcome =
        run({"train", "fashion-cnn", "--epochs", "3", "--schedule", schedule, "--schedule-epochs",
             "1", "--data-dir", (folder_ / "nothing").string()});
    EXPECT_EQ(outcome.code, 2) << outcome.err;
    EXPECT_THAT(outcome.err, HasSubstr("--schedule-epochs"));
  }
  const Outcome swept = run({"compare", "fashion-cnn", "--sweep", "schedule-epochs=3,2",
                             "--data-dir", (folder_ / "nothing").string()});
  EXPECT_EQ(swept.code, 2) << "the last value before the first is trained: " << swept.err;
}

TEST_F(Trouble, ARunThatHasBecomeNaNFailsAlsoInItsLastSteps) {
  for (const char* command : {"train", "compare"}) {
    const Outcome outcome =
        run({command, "mlp", "--in", "8", "--out", "8", "--batches", "4", "--batch-size", "4",
             "--epochs", "1", "--lr", "1e30", "--device", "cpu"});
    EXPECT_EQ(outcome.code, 1) << outcome.err;
    EXPECT_THAT(outcome.err, HasSubstr("NaN or Inf from step"));
    EXPECT_THAT(outcome.out, HasSubstr("were skipped")) << "the table's note";
  }
}

// A learning rate of 1e30 makes weights of 1e28 or so: the second product overflows FP32.
TEST_F(Trouble, TheOpThatMadeTheFirstNaNIsNamedIfAsked) {
  const Outcome outcome =
      run({"train", "mlp", "--in", "8", "--out", "8", "--batches", "4", "--batch-size", "4",
           "--epochs", "1", "--lr", "1e30", "--device", "cpu", "--detect-anomaly", "--json"});
  EXPECT_EQ(outcome.code, 1) << outcome.err;
  EXPECT_THAT(outcome.err, HasSubstr("Inf or NaN in step 2: aten::"));
  const auto json = nlohmann::json::parse(outcome.out);
  const auto& first = json["runs"][0]["anomalies"][0];
  EXPECT_EQ(first["step"], 2);
  EXPECT_EQ(first["place"], "forward");
  EXPECT_THAT(slurp(folder_ / "runs" / "train-mlp-001" / "metrics.jsonl"),
              HasSubstr("\"anomaly\":\"Inf or NaN in step 2: "));
}

// Features up to some 95000 are beyond fp16.
TEST_F(Trouble, WhatIfWritesThePolicyThatMakesFp16Train) {
  const auto run_of = [&](Words more) {
    more.insert(more.begin(), {"train",         "mlp",   "--data",       "synthetic-linear",
                               "--in",          "16",    "--out",        "1",
                               "--batches",     "20",    "--batch-size", "64",
                               "--epochs",      "1",     "--lr",         "1e-3",
                               "--loss-weight", "1e-6",  "--loss-scale", "1",
                               "--input-scale", "22000", "--device",     "cpu"});
    return run(more);
  };
  const Outcome asked = run_of({"--what-if", "fp16", "--json"});
  ASSERT_EQ(asked.code, 0) << asked.err;
  const auto result = nlohmann::json::parse(asked.out)["runs"][0]["what_if"];
  EXPECT_EQ(result["fp32_parts"], nlohmann::json({"layers.0"}));
  const std::string policy = result["op_policy"];
  EXPECT_EQ(policy, (run_folder() / "op-policy-fp16.txt").string());
  EXPECT_THAT(slurp(policy), HasSubstr("part layers.0 fp32"));
  EXPECT_THAT(asked.err, HasSubstr("with its policy: demi train mlp --data synthetic-linear"));
  EXPECT_THAT(asked.err, HasSubstr(" --precision fp16 --op-policy " + policy));
  EXPECT_THAT(slurp(run_folder() / "metrics.jsonl"), HasSubstr("\"what_if\":\"fp16\""));
  EXPECT_THAT(slurp(run_folder() / "report.html"), HasSubstr("What if it were 16 bits"));

  EXPECT_EQ(run_of({"--precision", "fp16"}).code, 1) << "without the policy it fails";
  const Outcome low = run_of({"--precision", "fp16", "--op-policy", policy});
  EXPECT_EQ(low.code, 0) << low.err;
  EXPECT_EQ(run_of({"--precision", "fp16", "--fp32-part", "layers.0"}).code, 0);
}

TEST_F(Trouble, WhatIfOfARecipeNamesTheLayersThatItHarms) {
  const Words line = small_run({"--what-if", "mxfp8", "--json"});
  const Outcome asked = run(line);
  ASSERT_EQ(asked.code, 0) << asked.err;
  const auto result = nlohmann::json::parse(asked.out)["runs"][0]["what_if"];
  EXPECT_EQ(result["recipe"], "mxfp8");
  EXPECT_GT(result["batches"], 0);
  EXPECT_EQ(result["layers"][0]["name"], "layers.0");
  EXPECT_THAT(slurp(run_folder() / "metrics.jsonl"), HasSubstr("\"what_if\":\"mxfp8\""));
  EXPECT_THAT(slurp(run_folder() / "report.html"), HasSubstr("What if it were mxfp8"));
  if (result["left_out"].empty() || result["none_fits"]) return;
  const std::string policy = result["op_policy"];
  EXPECT_EQ(policy, (run_folder() / "op-policy-mxfp8.txt").string());
  EXPECT_THAT(asked.err, HasSubstr(" --precision mxfp8 --op-policy " + policy));
  EXPECT_EQ(run(small_run({"--precision", "mxfp8", "--op-policy", policy})).code, 0);
}

TEST_F(Trouble, WhatIfIsRefusedWhereItCannotLook) {
  Outcome outcome = run(small_run({"--what-if", "fp16", "--mp"}));
  EXPECT_EQ(outcome.code, 2);
  EXPECT_THAT(outcome.err, HasSubstr("[--what-if] no run computes in FP32"));
  outcome = run(small_run({"--what-if", "mxfp8", "--mp"}));
  EXPECT_EQ(outcome.code, 2);
  outcome = run(small_run({"--what-if", "mxfp9"}));
  EXPECT_THAT(outcome.err, HasSubstr("did you mean mxfp8?"));
  outcome = run(small_run({"--what-if", "fp61"}));
  EXPECT_EQ(outcome.code, 2);
  EXPECT_THAT(outcome.err, HasSubstr("did you mean fp16?"));
}

// Before any run is trained.
TEST_F(Trouble, APolicyThatNamesAPartWhichTheModelLacksIsRefused) {
  const fs::path policy = folder_ / "policy.txt";
  std::ofstream(policy) << "part layer.0 fp32\n";
  for (const char* command : {"train", "compare"}) {
    Words line = small_run({"--op-policy", policy.string()});
    line[0] = command;
    if (line[0] == "train") line.push_back("--mp");
    const Outcome outcome = run(line);
    EXPECT_EQ(outcome.code, 2) << command;
    EXPECT_THAT(outcome.err, HasSubstr("did you mean layers.0?")) << command;
  }
  EXPECT_FALSE(fs::exists(folder_ / "runs"));
}

// The report has what is sound of the steps before, and says what is missing.
TEST_F(Trouble, ARunGoesOnWithDamagedMetrics) {
  const auto steps = [](const char* number) -> Words {
    return {"--monitor", "1", "--steps", number};
  };
  ASSERT_EQ(run(small_run(steps("4"))).code, 0);
  const fs::path metrics = run_folder() / "metrics.jsonl";
  std::string text = slurp(metrics);
  const std::string line = "\"gradients\":\"weights\"";
  ASSERT_THAT(text, HasSubstr(line));
  text.replace(text.find(line), line.size(), "\"gradients\":NaN");
  std::ofstream(metrics) << text << std::string("\0\xff\n", 3) << "{\"step\":";
  Words again{"train", "--resume", run_folder().string(), "--json"};
  for (const std::string& word : steps("6")) again.push_back(word);
  const Outcome outcome = run(again);
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  const auto notes = nlohmann::json::parse(outcome.out)["notes"].dump();
  EXPECT_THAT(notes, HasSubstr("Left out of what was read from metrics.jsonl: line 2 is no JSON "
                               "object; line "));
  EXPECT_THAT(slurp(run_folder() / "report.html"), HasSubstr("Left out of what was read from"));
}

// SIGXFSZ would end the program without a word.
TEST_F(Trouble, AFileThatMayNotGrowIsSaidAndNothingIsLeft) {
  const Outcome outcome = run(small_run(), [] {
    signal(SIGXFSZ, SIG_DFL);
    const rlimit limit{1000, 1000};
    setrlimit(RLIMIT_FSIZE, &limit);
  });
  EXPECT_EQ(outcome.code, 1) << outcome.err;
  EXPECT_THAT(outcome.err, HasSubstr("File too large"));
  EXPECT_FALSE(fs::exists(run_folder()));
}

TEST_F(Trouble, APathThatIsNotUtf8IsRefusedAndNothingIsLeft) {
  const std::string folder = (folder_ / "p\xff").string();
  fs::create_directories(folder);
  const Outcome outcome = run({"train", "folder-resnet50", "--data-dir", folder});
  EXPECT_EQ(outcome.code, 2) << outcome.err;
  EXPECT_THAT(outcome.err, HasSubstr("[--data-dir] the text is not UTF-8"));
  EXPECT_FALSE(fs::exists(folder_ / "runs"));
}

// What stands beside the folder of a run that was refused is the user's.
TEST_F(Trouble, WhatIsRefusedBeforeItsFirstStepLeavesTheUsersFilesAlone) {
  const fs::path runs = folder_ / "mine";
  fs::create_directories(runs / "train-mlp-001");
  std::ofstream(runs / "train-mlp-001" / "notes.txt") << "mine";
  std::ofstream(runs / "notes.txt") << "mine";
  const Outcome outcome = run(small_run({"--run-dir", runs.string()}), [] {
    const rlimit limit{1000, 1000};
    setrlimit(RLIMIT_FSIZE, &limit);
  });
  EXPECT_EQ(outcome.code, 1) << outcome.err;
  std::set<std::string> left;
  for (const auto& entry : fs::recursive_directory_iterator(runs))
    left.insert(fs::relative(entry.path(), runs));
  EXPECT_THAT(left,
              ::testing::ElementsAre("notes.txt", "train-mlp-001", "train-mlp-001/notes.txt"));
}

TEST_F(Trouble, OneSignalEndsTheProgramWhileItReadsData) {
  const fs::path fifo = folder_ / "texts.csv";  // nobody writes to it: opening it never ends
  ASSERT_EQ(mkfifo(fifo.c_str(), 0600), 0);
  for (const int number : {SIGINT, SIGTERM, SIGHUP}) {
    const pid_t child = start({"train", "imdb-lstm", "--data", "csv", "--train-file", fifo.string(),
                               "--test-file", fifo.string()});
    EXPECT_TRUE(demi::wait_until([&] { return waits(child); }));
    kill(child, number);
    const Outcome outcome = finish(child);
    EXPECT_EQ(outcome.code, 128 + number);
    EXPECT_FALSE(fs::exists(folder_ / "runs"));
  }
}

TEST_F(Trouble, OneSignalEndsARunInItsSteps) {
  const pid_t child = start({"train", "mlp", "--in", "8", "--out", "8", "--batches", "4",
                             "--batch-size", "4", "--epochs", "1000000", "--device", "cpu"});
  ASSERT_TRUE(appears(run_folder() / "metrics.jsonl"));
  kill(child, SIGINT);
  const Outcome outcome = finish(child);
  EXPECT_EQ(outcome.code, 128 + SIGINT) << outcome.err;
  EXPECT_TRUE(fs::exists(run_folder() / "metrics.jsonl"));
}

TEST_F(Trouble, ASignalThatWasIgnoredBeforeStaysIgnored) {
  sigset_t hangup;
  sigemptyset(&hangup);
  sigaddset(&hangup, SIGHUP);
  sigprocmask(SIG_BLOCK, &hangup, nullptr);  // until the child ignores it, as nohup does
  const pid_t child = start(small_run(), [&] {
    signal(SIGHUP, SIG_IGN);
    sigprocmask(SIG_UNBLOCK, &hangup, nullptr);
  });
  sigprocmask(SIG_UNBLOCK, &hangup, nullptr);
  EXPECT_TRUE(demi::wait_until([&] {
    kill(child, SIGHUP);
    return has_ended(child);
  }));
  EXPECT_EQ(finish(child).code, 0);
  expect_whole_run();
}

// VGG-19 of 32 x 32 pictures on others is an error of LibTorch's.
TEST_F(Trouble, TheStackTraceOfLibTorchIsShownWhenAskedFor) {
  const std::vector<std::string> arguments{
      "train", "synthetic-resnet50", "--model", "vgg19",    "--image-size", "64", "--batch-size",
      "2",     "--batches",          "1",       "--device", "cpu"};
  const Outcome plain = run(arguments);
  EXPECT_EQ(plain.code, 1);
  EXPECT_THAT(plain.err, HasSubstr("shapes cannot be multiplied"));
  EXPECT_THAT(plain.err, Not(HasSubstr("frame #")));
  const Outcome debug = run(arguments, [] { setenv("DEMI_DEBUG", "1", 1); });
  EXPECT_EQ(debug.code, 1);
  EXPECT_THAT(debug.err, HasSubstr("frame #"));
}

}  // namespace
}  // namespace cli_testing
