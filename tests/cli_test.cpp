// The program as a user meets it: exit codes, words, files. Runs the built `demi` (its path is in
// DEMI_PROGRAM).
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "demi/core/wait_until_testing.h"
#include "lab/recipes/same_run_testing.h"
#include "tests/cli_testing.h"
#include "tests/small_recipes.h"

namespace cli_testing {
namespace {

using ::testing::AllOf;
using ::testing::ContainsRegex;

TEST_F(Cli, HelpNamesTheCommandsAndExitsWith0) {
  const Outcome help = run({"--help"});
  EXPECT_EQ(help.code, 0);
  EXPECT_THAT(help.out, HasSubstr("compare"));
  const Outcome compare = run({"compare", "--help"});
  EXPECT_EQ(compare.code, 0);
  for (const char* option : {"--epochs", "--batch-size", "--lr", "--runs", "--device", "--seed",
                             "--data-dir", "--limit", "--json", "--model", "--data"}) {
    EXPECT_THAT(compare.out, HasSubstr(option));
  }
}

// Lines of 373 columns were left to the terminal, which breaks them within words.
TEST_F(Cli, HelpIsWrapped) {
  const auto in_columns = [](const char* columns) {
    return [columns] { columns ? setenv("COLUMNS", columns, 1) : unsetenv("COLUMNS"); };
  };
  for (const auto& [columns, most] :
       {std::pair<const char*, std::size_t>{nullptr, 100}, {"80", 80}})
    for (const Words& words : {Words{"--help"},
                               {"train", "--help"},
                               {"compare", "mlp", "--help"},
                               {"bench", "--help"},
                               {"completion", "--help"}}) {
      const Outcome help = run(words, in_columns(columns));
      std::istringstream lines(help.out);
      for (std::string line; std::getline(lines, line);) {
        const bool is_to_be_copied = line.starts_with("  --") && line.find("  ", 4) == line.npos;
        EXPECT_TRUE(is_to_be_copied || line.size() <= most) << line;
      }
    }
  const std::string options = run({"train", "--help"}, in_columns("80")).out;
  EXPECT_THAT(options,
              HasSubstr("  --threads INT                     CPU: threads of one operation; 0: "
                        "LibTorch's\n"
                        "                                    choice [0]\n"));
}

// CLI11 writes "--layers{0}" and "INT:INT in [1 - 1000]".
TEST_F(Cli, HelpShowsOptionsAsTheyAreTyped) {
  const auto shows = [&](Words words, const std::string& option) {
    words.emplace_back("--help");
    EXPECT_THAT(run(words).out, HasSubstr("\n  " + option + " "));
  };
  shows({"compare"}, "--interleave[=N]");
  shows({"train"}, "--mp,--mixed-precision");
  shows({"bench", "matmul"}, "--layers[=TEXT]");
  shows({"bench", "step"}, "--no-peer");
  shows({"bench", "model"}, "--width INT=64,256,1024,4096 ...");
  shows({"profile"}, "--steps INT=5");
  EXPECT_THAT(run({"manual"}).out, Not(HasSubstr("INT in")));
}

TEST_F(Cli, ErrorsAreWrappedOnATerminalAndOneLineInAFile) {
  const Words words{"compare", "fashion-cn"};
  const std::string in_file = run(words).err;
  EXPECT_EQ(std::ranges::count(in_file, '\n'), 1) << in_file;
  std::istringstream shown(shown_on_terminal(STDERR_FILENO, 60, words, {}, /*code=*/2));
  std::string joined;
  for (std::string line; std::getline(shown, line);) {
    std::erase(line, '\r');
    EXPECT_LE(line.size(), 60u) << line;
    EXPECT_TRUE(line.starts_with(joined.empty() ? "demi: [" : "      ")) << line;
    joined += (joined.empty() ? "" : " ") + line.substr(line.find_first_not_of(' '));
  }
  EXPECT_EQ(joined + "\n", in_file);
}

TEST_F(Cli, UsageErrorsExitWith2AndNameTheNearestRightWord) {
  const auto expect = [&](const std::vector<std::string>& arguments, const char* words) {
    const Outcome outcome = run(arguments);
    EXPECT_EQ(outcome.code, 2) << outcome.err;
    EXPECT_THAT(outcome.err, HasSubstr(words));
    EXPECT_EQ(outcome.out, "");
  };
  expect({"compare", "--epohcs", "3"}, "did you mean --epochs?");
  expect({"compre"}, "unknown command compre; did you mean compare?");
  expect({"tables"}, "unknown command tables; known: compare, train, eval");
  expect({"bench", "tables"}, "unknown command tables; known: recipe, model, matmul");
  expect({"doctor", "tables"}, "unknown argument tables\n");
  for (const char* limit : {"--limit", "--limit=3"})
    expect({"train", "mlp", "--", limit, "3"},
           "unknown argument --limit: behind -- nothing is an option; leave -- out\n");
  expect({"train", "mlp", "--limt", "3", "--", "--limit"}, "did you mean --limit?");
  expect({"compare", "fashion-cn"}, "did you mean fashion-cnn?");
  expect({"compare", "--runs", "fp32,bf61"}, "did you mean bf16?");
  expect({"compare", "--runs", "fp32,fp32"}, "twice");
  expect({"compare", "--runs", "fp16:scale=-1"}, "positive number");
  expect({"profile", "--steps", "0"}, "--steps: too small; seen: 0; accepted: 1 to 1000\n");
  expect({"profile", "--steps", "1e2"}, "--steps: not a whole number; seen: 1e2; accepted: 1 to ");
  expect({"eval", "x", "--top-k", "-1"},
         "--top-k: too small; seen: -1; accepted: 0 to 2147483647\n");
  expect({"bench", "autocast", "--width", "3000000000"}, "--width: too large; seen: 3000000000; ");
  expect({"compare", "--interleave=0"}, "--interleave: too small; seen: 0; accepted: 1 to ");
  expect({"compare", "--interleave="}, "--interleave: the value is empty");
  expect({"compare", "mlp", "--layers=", "3"}, "--layers: the value is empty");
  expect({"doctor", "--seconds", "abc"},
         "--seconds: not a number; seen: abc; accepted: a number such as 0.1 or 1e-3\n");
  expect({"bench", "matmul", "--sizes", "64,big"},
         "--sizes: not a whole number; seen: 64,big; accepted: a number such as 10\n");
  expect({"bench", "step", "--rounds="}, "--rounds: the value is empty");
  expect({"compare", "--runs", ""}, "--runs: the value is empty");
  expect({"bench", "recipe", "--runs="}, "--runs: the value is empty");
  expect({"eval", "model.safetensors", "--precision", ""}, "--precision: the value is empty");
  expect({"compare", "--sweep", "", "--steps", "1"}, "--sweep: the value is empty");
  expect({"train", "mlp", "--run-dir", ""}, "--run-dir: the value is empty");
  expect({"compare", "--epochs", "0"}, "too small");
  expect({"compare", "--epochs", "three"}, "--epochs");
  expect({"compare", "--device", "gpu"}, "no such device");
  expect({"compare", "--model", "fashion-cn"}, "did you mean fashion-cnn?");
  expect({},
         "a first training, in seconds: demi train mlp --mp --steps 10; what each does: demi "
         "--help; known: compare, train");
  expect({"bench"}, "what each does: demi bench --help; known: recipe");
  expect({"train", "mlp", "--precision", "half"},
         "did you mean fp16 (mixed precision) or fp16-true");
  expect({"train", "mlp", "--checkpoint-every", "1 epoch"}, "did you mean 1epoch?");
  expect({"train", "mlp", "--stop-after", "11 h 50 m"}, "did you mean 11h50m?");
}

TEST_F(Cli, MissingDataExitsWith3AndSaysHowToGetIt) {
  const Outcome outcome = run({"compare", "--data-dir", (folder_ / "nothing").string()});
  EXPECT_EQ(outcome.code, 3) << outcome.err;
  EXPECT_THAT(outcome.err, HasSubstr("fashion-mnist"));
  EXPECT_FALSE(fs::exists(folder_ / "runs")) << "no run folder for a run that cannot be";
}

TEST_F(Cli, AMissingDeviceExitsWith4) {
  const Outcome outcome = run({"compare", "--device", "cuda:99"});
  EXPECT_EQ(outcome.code, 4) << outcome.err;
}

TEST_F(Cli, ARunFolderThatCannotBeMadeIsSaidBeforeTraining) {
  std::ofstream(folder_ / "file") << "x";
  const Outcome outcome = run({"compare", "--run-dir", (folder_ / "file").string()});
  EXPECT_EQ(outcome.code, 1) << outcome.err;
  EXPECT_THAT(outcome.err, Not(HasSubstr("epoch 1")));
}

TEST_F(Cli, CompareWritesTableRunFolderAndJson) {
  if (!has_data()) GTEST_SKIP() << "Fashion-MNIST (Debian's dataset-fashion-mnist) is not here";
  const Outcome outcome = run({"compare", "--limit", "512", "--epochs", "1", "--batch-size", "64",
                               "--json", "--runs", "fp32,bf16,fp16:scale=128"});
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_THAT(outcome.err + outcome.out, Not(HasSubstr("\x1b")));
  EXPECT_THAT(outcome.err + outcome.out, Not(HasSubstr("\r")));
  const auto json = nlohmann::json::parse(outcome.out);
  ASSERT_EQ(json["runs"].size(), 3u);
  const auto &fp32 = json["runs"][0], &bf16 = json["runs"][1], &fp16 = json["runs"][2];
  EXPECT_EQ(fp16["precision"], "fp16:scale=128");
  EXPECT_LT(bf16["model_bytes"].get<double>(), 0.55 * fp32["model_bytes"].get<double>())
      << "it halves";
  // Both hold the whole set of pictures, 55 MB of about 110.
  EXPECT_LT(bf16["peak_bytes"].get<double>(), 0.85 * fp32["peak_bytes"].get<double>());
  EXPECT_GT(fp32["seconds_per_epoch"].get<double>(), 0);

  const fs::path run_folder = folder_ / "runs" / "compare-fashion-cnn-001";
  for (const char* name :
       {"config.json", "metrics.jsonl", "report.html", "bf16-model.safetensors"}) {
    EXPECT_TRUE(fs::exists(run_folder / name)) << name;
  }
  // The table says what the file is.
  EXPECT_EQ(fs::file_size(run_folder / "bf16-model.safetensors"),
            bf16["model_bytes"].get<std::uintmax_t>());
  std::uintmax_t checkpoint = 0;
  for (const auto& entry :
       fs::directory_iterator(demi::checkpoint::find(run_folder / "checkpoints" / "fp32")))
    checkpoint += entry.file_size();
  EXPECT_EQ(checkpoint, fp32["checkpoint_bytes"].get<std::uintmax_t>());
  int steps = 0, scaled = 0;
  std::ifstream metrics(run_folder / "metrics.jsonl");
  for (std::string line; std::getline(metrics, line);) {
    const auto fields = nlohmann::json::parse(line);
    steps += fields.contains("loss");
    scaled += fields.contains("loss_scale") && fields["loss_scale"] == 128;
    if (fields.contains("loss")) {
      EXPECT_GE(fields["seconds"].get<double>(), fields["data_seconds"].get<double>());
    }
  }
  EXPECT_EQ(steps, 3 * 8) << "512 pictures in batches of 64, three runs";
  EXPECT_EQ(scaled, 8);
}

// ./demo ends with it.
TEST_F(Cli, AComparisonWithoutARecipeEndsWithWhatToOpenAndTry) {
  if (!has_data()) GTEST_SKIP() << "Fashion-MNIST (Debian's dataset-fashion-mnist) is not here";
  starts_for_real_ = true;  // it says its path
  const std::vector<std::string> command{"compare",      "--limit", "32",     "--steps", "1",
                                         "--batch-size", "32",      "--runs", "fp32"};
  const Outcome outcome = run(command);
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  const std::string last = outcome.err.substr(outcome.err.rfind('\n', outcome.err.size() - 2) + 1);
  EXPECT_THAT(last, HasSubstr("xdg-open"));
  EXPECT_THAT(last, HasSubstr("compare-fashion-cnn-001/report.html, or any browser"));
  EXPECT_THAT(last, HasSubstr("/demi doctor"));
  const auto in_path = [] {
    setenv("PATH", fs::path(std::getenv("DEMI_PROGRAM")).parent_path().c_str(), 1);
  };
  EXPECT_THAT(run(command, in_path).err, HasSubstr("to try next: demi doctor, demi train --list"));
  std::vector<std::string> named = command;
  named.insert(named.begin() + 1, "fashion-cnn");
  EXPECT_THAT(run(named).err, Not(HasSubstr("xdg-open")));
}

TEST_F(Cli, InterleavedRunsAreBitForBitThoseInSequence) {
  if (!has_data()) GTEST_SKIP() << "Fashion-MNIST (Debian's dataset-fashion-mnist) is not here";
  const std::vector<std::string> command{"compare", "--limit",      "320", "--epochs",
                                         "2",       "--batch-size", "64",  "--json"};
  const Outcome sequence = run(command);
  ASSERT_EQ(sequence.code, 0) << sequence.err;
  std::vector<std::string> in_turns = command;
  in_turns.emplace_back("--interleave=3");
  const Outcome turns = run(in_turns);
  ASSERT_EQ(turns.code, 0) << turns.err;
  const fs::path first = folder_ / "runs" / "compare-fashion-cnn-001",
                 second = folder_ / "runs" / "compare-fashion-cnn-002";
  for (const std::string run : {"fp32", "bf16"}) {
    const std::string file = run + "-model.safetensors";
    EXPECT_TRUE(slurp(first / file) == slurp(second / file)) << file;
    same_run::expect_same_checkpoint(first / "checkpoints" / run, second / "checkpoints" / run);
  }
  EXPECT_EQ(same_run::metrics_by_run(first), same_run::metrics_by_run(second));
  const auto a = nlohmann::json::parse(sequence.out), b = nlohmann::json::parse(turns.out);
  EXPECT_TRUE(a["interleave"].is_null());
  EXPECT_EQ(b["interleave"], 3);
  for (std::size_t i = 0; i < 2; ++i) {
    for (const char* key :
         {"test_loss", "test_accuracy", "test_accuracy_fp32_eval", "model_bytes", "skipped_steps"})
      EXPECT_EQ(a["runs"][i][key], b["runs"][i][key]) << key;
    // In sequence, what the first run leaves is in use before the second one begins.
    const auto memory = [i](const auto& json) {
      return json["runs"][i]["peak_bytes"].template get<int64_t>() +
             json["runs"][i]["data_bytes"].template get<int64_t>();
    };
    EXPECT_EQ(memory(a), memory(b));
    EXPECT_TRUE(b["runs"][i].contains("cores_share"));
    EXPECT_GE(b["runs"][i]["involuntary_switches"], 0);
  }
}

TEST_F(Cli, ALanguageModelsRunSaysItsFlopsAndTheirShareOfThePeak) {
  std::string text;
  for (int i = 0; i < 40; ++i) text += "to be, or not to be: that is the question\n";
  small_recipes::write(folder_ / "text", text);
  const Outcome outcome = run({"train",        "gpt-shakespeare",
                               "--data",       "text",
                               "--train-file", folder_ / "text",
                               "--depth",      "2",
                               "--embedding",  "16",
                               "--heads",      "2",
                               "--context",    "8",
                               "--eval-every", "4",
                               "--epochs",     "1",

                               "--run-dir",    folder_,
                               "--json"});
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_THAT(outcome.err, HasSubstr("% of peak FLOPs"));
  const auto one = nlohmann::json::parse(outcome.out)["runs"][0];
  const std::size_t characters = std::set<char>(text.begin(), text.end()).size();
  const double per_token = 6.0 * (2 * 12 * 16 * 16 + double(characters) * 16) + 12 * 2 * 8 * 16;
  EXPECT_EQ(one["model_flop_per_token"], per_token);
  const double seconds = one["seconds"], tokens = one["tokens_per_second"];
  EXPECT_NEAR(tokens * seconds, 4 * 12 * 8, 1e-6);
  EXPECT_DOUBLE_EQ(one["model_flop_utilization"],
                   tokens * per_token / double(one["peak_flop_per_second"]));
}

TEST_F(Cli, TopKThatEveryExampleWouldMeetIsRefused) {
  const Outcome outcome =
      run({"train", "mlp", "--in", "8", "--out", "8", "--batches", "2", "--top-k", "5"});
  EXPECT_EQ(outcome.code, 2) << outcome.err;
  EXPECT_THAT(outcome.err, HasSubstr("there are no classes"));
  EXPECT_EQ(run({"compare", "--interleave=-3"}).code, 2);
}

TEST_F(Cli, PublishedFiguresNeedNoTrainingAndARecipeThatHasThem) {
  const Outcome all = run({"compare", "--published"});
  EXPECT_EQ(all.code, 0) << all.err;
  EXPECT_THAT(all.out, HasSubstr("4 x V100"));
  EXPECT_THAT(all.out, HasSubstr("Source: Micikevicius"));
  const Outcome json = run({"compare", "--published", "--json"});
  EXPECT_EQ(nlohmann::json::parse(json.out)[0]["recipe"], "cifar10-resnet50");
  const Outcome none = run({"compare", "mlp", "--published"});
  EXPECT_EQ(none.code, 2) << none.err;
  EXPECT_THAT(none.err, HasSubstr("cifar10-resnet50"));
  // Beside anything else it is about the comparison that the rest asks for.
  for (const Words& more : {Words{"--steps", "2"}, Words{"--runs", "fp32"}}) {
    Words words{"compare", "--published"};
    words.insert(words.end(), more.begin(), more.end());
    const Outcome outcome = run(words);
    EXPECT_EQ(outcome.code, 2) << outcome.err;
    EXPECT_THAT(outcome.err,
                HasSubstr("no figures of this recipe are published; seen: fashion-cnn"));
  }
  EXPECT_EQ(run({"compare", "--published", "--resume", (folder_ / "none").string()}).code, 3);
  EXPECT_FALSE(fs::exists(folder_ / "runs"));
}

// A shell reads the words of the line, and its printf writes one a line.
TEST_F(Cli, TheLineThatRepeatsAMeasurementQuotesWhatAShellWouldSplit) {
  const std::string policy = (folder_ / "bob's policy.txt").string();
  std::ofstream(policy) << "exp fp32\n";
  const std::string runs = "bf16:op-policy=" + policy;
  const Outcome outcome =
      run({"bench", "model", "--width", "8", "--batch-size", "4", "--device", "cpu", "--warmup",
           "2", "--steps", "1", "--rounds", "1", "--runs", runs, "--json"});
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  const auto again = nlohmann::json::parse(outcome.out)["again"].get<std::string>();
  const std::string words = (folder_ / "words").string();
  ASSERT_EQ(std::system(("printf '%s\\n' " + again + " > " + words).c_str()), 0) << again;
  EXPECT_THAT(slurp(words), HasSubstr("\n--runs\n" + runs + "\n"));
}

// What is printed has one form: a table that knows the terminal's width and character set.
TEST_F(Cli, EveryMeasurementNamesTheLineThatRepeatsIt) {
  const std::vector<std::vector<std::string>> benches{
      {"bench", "step", "--parameters", "1000", "--tensors", "2", "--rounds", "1", "--device",
       "cpu"},
      {"bench", "autocast", "--rounds", "1", "--iterations", "10", "--width", "16", "--batch", "2"},
      {"bench", "model", "--width", "8", "--batch-size", "4", "--device", "cpu", "--warmup", "2",
       "--steps", "1", "--rounds", "1"},
      {"bench", "recipe", "mlp", "--in", "8", "--out", "8", "--batch-size", "4", "--batches", "2",
       "--device", "cpu", "--warmup", "2", "--steps", "1", "--rounds", "1"}};
  for (std::vector<std::string> bench : benches) {
    SCOPED_TRACE(bench[1]);
    const Outcome text = run(bench);
    ASSERT_EQ(text.code, 0) << text.err;
    EXPECT_THAT(text.out, HasSubstr("again: demi bench " + bench[1]));
    EXPECT_THAT(text.out, Not(HasSubstr("\x1b")));
    bench.emplace_back("--json");
    const Outcome json = run(bench);
    ASSERT_EQ(json.code, 0) << json.err;
    EXPECT_THAT(nlohmann::json::parse(json.out)["again"].get<std::string>(),
                ::testing::StartsWith("demi bench " + bench[1]));
  }
}

TEST_F(Cli, PolicyIsATableAndTheSameAsItsJson) {
  const Outcome text = run({"policy", "--policy", "fp32_softmax"});
  const Outcome json = run({"policy", "--policy", "fp32_softmax", "--json"});
  ASSERT_EQ(text.code, 0) << text.err;
  const auto ops = nlohmann::json::parse(json.out)["ops"];
  EXPECT_GT(ops.size(), 100u);
  EXPECT_THAT(text.out, HasSubstr(std::to_string(ops.size()) + " ops"));
  EXPECT_THAT(text.out, HasSubstr("default: "));
  EXPECT_EQ(run({"policy", "--device", "gpu"}).code, 2);
}

// A wrong part of the model is said before a run folder is made.
TEST_F(Cli, PartsAndPoliciesOfRunsAreReadFromOptionsAndVariants) {
  const std::string good = (folder_ / "good").string(), bad = (folder_ / "bad").string(),
                    wrong = (folder_ / "wrong").string();
  std::ofstream(good) << "addmm fp32  # sums\npart layers.2 fp32\n";
  std::ofstream(bad) << "part layer.2 fp32\n";
  std::ofstream(wrong) << "sofmax fp32\n";
  const std::vector<std::string> compare{"compare", "loss-scaling", "--steps", "2", "--runs"};
  const auto with = [&](std::vector<std::string> more) {
    more.insert(more.begin(), compare.begin(), compare.end());
    return run(more);
  };
  const auto expect = [](const Outcome& outcome, const std::string& words) {
    EXPECT_EQ(outcome.code, 2) << outcome.err;
    EXPECT_THAT(outcome.err, HasSubstr(words));
  };
  expect(with({"fp32,bf16:op-policy=" + bad}), "did you mean layers.2?");
  expect(with({"fp32,bf16", "--op-policy", bad}), "[--op-policy]");
  expect(with({"fp32,bf16:fp32-part=layer.2"}), "did you mean layers.2?");
  expect(with({"fp32,bf16", "--fp32-part", "layer.2"}), "did you mean layers.2?");
  expect(with({"bf16:op-policy=" + wrong}), "did you mean softmax?");
  expect(run({"train", "loss-scaling", "--op-policy", bad, "--mp"}), "did you mean layers.2?");
  EXPECT_EQ(with({"bf16:op-policy=" + bad + ".none"}).code, 3);
  EXPECT_FALSE(fs::exists(folder_ / "runs"));

  const Outcome outcome =
      with({"fp32,bf16,bf16:op-policy=" + good + ",bf16:no-skip:fp32-part=layers.0", "--json"});
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  const auto runs = nlohmann::json::parse(outcome.out)["runs"];
  ASSERT_EQ(runs.size(), 4u);
  EXPECT_EQ(runs[2]["precision"], "bf16:op-policy=" + good);
  const fs::path folder = folder_ / "runs" / "compare-loss-scaling-001";
  EXPECT_THAT(slurp(folder / "report.html"), HasSubstr("bf16:no-skip:fp32-part=layers.0"));
  EXPECT_TRUE(fs::exists(folder / "bf16-no-skip-fp32-part-layers.0-model.safetensors"));
  const Outcome policy = run({"policy", "--file", good});
  EXPECT_THAT(policy.out, HasSubstr("The part layers.2 of the model computes in FP32."));
  EXPECT_THAT(policy.out, HasSubstr("sums"));
}

// Nothing of the recipe's gradients is left in fp16 without a scale.
TEST_F(Cli, LayersAreComparedWithoutTraining) {
  const std::vector<std::string> compare{"compare", "loss-scaling", "--layers"};
  const auto with = [&](std::vector<std::string> more) {
    more.insert(more.begin(), compare.begin(), compare.end());
    return run(more);
  };
  const Outcome outcome = with({"--runs", "fp32,fp16:no-scaler,fp16", "--json"});
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  const auto runs = nlohmann::json::parse(outcome.out)["runs"];
  ASSERT_EQ(runs.size(), 2u);
  for (const auto& layer : runs[0]["layers"]) {
    EXPECT_EQ(layer["gradient"]["made_zero"], 1) << layer;
    EXPECT_EQ(layer["weight_gradient"]["error"], 1);
  }
  EXPECT_EQ(runs[1]["loss_scale"], 65536);
  EXPECT_LT(runs[1]["layers"][0]["weight_gradient"]["error"], 0.01);
  const fs::path folder = folder_ / "runs" / "layers-loss-scaling-001";
  EXPECT_THAT(slurp(folder / "report.html"), HasSubstr("Error of the weights&#39; gradient"));
  EXPECT_EQ(nlohmann::json::parse(slurp(folder / "result.json"))["runs"], runs);
  const Outcome text = with({"--runs", "bf16"});
  EXPECT_THAT(text.out, HasSubstr("layers.0"));
  EXPECT_THAT(text.out, HasSubstr("made 0"));
  EXPECT_EQ(with({"--runs", "fp32"}).code, 2);
  EXPECT_EQ(with({"--interleave"}).code, 2);
  const Outcome watched = with({"--what-if", "fp16"});
  EXPECT_EQ(watched.code, 2);
  EXPECT_THAT(watched.err,
              HasSubstr("[--what-if] the setting does nothing in this run: --layers "));
  for (const Words& more : {Words{"--epochs", "2"}, Words{"--ema", "0.9"}}) {
    const Outcome unread = with(more);
    EXPECT_EQ(unread.code, 2);
    EXPECT_THAT(unread.err, HasSubstr("[" + more[0] + "] the setting does nothing in this run"));
  }
  const Words scheduled{"compare", "loss-scaling", "--layers=2", "--runs", "bf16", "--epochs", "2"};
  EXPECT_EQ(run(scheduled).code, 2) << "the rate is constant";
  Words ends = scheduled;
  ends.insert(ends.end(), {"--schedule", "cosine"});
  EXPECT_EQ(run(ends).code, 0) << "the schedule is made for two epochs";
  const Outcome late = run({"compare", "loss-scaling", "--layers=401", "--schedule", "cosine"});
  EXPECT_EQ(late.code, 2);
  EXPECT_THAT(late.err, HasSubstr("[--layers] the learning rates of the cosine schedule end"));
  EXPECT_THAT(late.err, HasSubstr("accepted: 0 to 400"));
}

TEST_F(Cli, DataAreListedWithTheirFolders) {
  const Outcome absent = run({"data", "list", "--data-dir", (folder_ / "none").string()});
  EXPECT_EQ(absent.code, 2);
  EXPECT_THAT(absent.err, HasSubstr("[--data-dir] there is no such folder; seen: "));
  const Outcome text = run({"data", "list", "--data-dir", folder_.string()});
  ASSERT_EQ(text.code, 0) << text.err;
  EXPECT_THAT(text.out, ContainsRegex("cifar10 +60,000 photographs"));
  EXPECT_THAT(text.out, HasSubstr("not here: "));
  const Outcome json = run({"data", "list", "--json"});
  EXPECT_EQ(nlohmann::json::parse(json.out)["data_sets"].size(), 6u);
  const Outcome made = run({"data", "get", "synthetic-rows"});
  EXPECT_EQ(made.code, 2) << made.err;
  EXPECT_THAT(made.err, HasSubstr("a published set"));
}

TEST_F(Cli, TrainListsItsRecipes) {
  const Outcome outcome = run({"train", "--list", "--json"});
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  const auto json = nlohmann::json::parse(outcome.out);
  std::vector<std::string> names;
  for (const auto& recipe : json["recipes"]) {
    names.push_back(recipe["name"]);
    for (const char* key : {"model", "data", "precision"}) EXPECT_TRUE(recipe.contains(key));
  }
  EXPECT_THAT(names, ::testing::IsSupersetOf({"mlp", "cifar10-cnn", "cifar10-resnet50",
                                              "cifar10-resnet18", "cifar10-vgg19",
                                              "synthetic-resnet50", "imdb-lstm", "folder-resnet50",
                                              "fashion-cnn", "mnist-cnn", "loss-scaling"}));
}

// What eval says of the saved file is what train said of it.
TEST_F(Cli, EvalOfTheSavedFileGivesTheAccuracyOfTheRun) {
  if (!has_data()) GTEST_SKIP() << "Fashion-MNIST (Debian's dataset-fashion-mnist) is not here";
  const Outcome trained = run({"train", "fashion-cnn", "--limit", "1200", "--epochs", "1",
                               "--batch-size", "64", "--mp", "--top-k", "3", "--json"});
  ASSERT_EQ(trained.code, 0) << trained.err;
  const auto run_json = nlohmann::json::parse(trained.out)["runs"][0];
  EXPECT_GE(run_json["test_top3_accuracy"], run_json["test_accuracy"]);
  const fs::path folder = folder_ / "runs" / "train-fashion-cnn-001";
  const Outcome evaluated =
      run({"eval", (folder / "model.safetensors").string(), "--limit", "200", "--json"});
  ASSERT_EQ(evaluated.code, 0) << evaluated.err;
  const auto eval_json = nlohmann::json::parse(evaluated.out);
  ASSERT_EQ(eval_json["runs"].size(), 2u);
  EXPECT_EQ(eval_json["runs"][1]["precision"], run_json["precision"]);
  EXPECT_EQ(eval_json["runs"][1]["test_accuracy"], run_json["test_accuracy"]);
  EXPECT_EQ(eval_json["runs"][1]["test_top3_accuracy"], run_json["test_top3_accuracy"]);
  EXPECT_THAT(slurp(folder / "metrics.jsonl"), HasSubstr("\"test_top3_accuracy\":"));
  EXPECT_TRUE(fs::exists(folder / "checkpoints" / "best"));
}

TEST_F(Cli, OptionsAreStrongerThanTheEnvironmentAndThatThanTheFile) {
  std::ofstream(folder_ / "c.json")
      << R"({"in": 8, "out": 8, "batches": 2, "epochs": 1, "batch_size": 4, "lr": 0.5, "seed": 3})";
  setenv("DEMI_BATCH_SIZE", "5", 1);
  setenv("DEMI_LR", "0.25", 1);
  const Outcome outcome =
      run({"train", "mlp", "--config", (folder_ / "c.json").string(), "--lr", "0.125", "--json"});
  unsetenv("DEMI_BATCH_SIZE");
  unsetenv("DEMI_LR");
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  const auto json = nlohmann::json::parse(outcome.out);
  EXPECT_EQ(json["seed"], 3) << "from the file";
  EXPECT_EQ(json["batch_size"], 5) << "from the environment";
  EXPECT_EQ(json["learning_rate"], 0.125) << "from the option";
  // The resolved one is saved and can be given back.
  const Outcome again =
      run({"train", "--config", (folder_ / "runs" / "train-mlp-001" / "config.json").string(),
           "--json"});
  ASSERT_EQ(again.code, 0) << again.err;
  EXPECT_EQ(nlohmann::json::parse(again.out)["batch_size"], 5);
}

TEST_F(Cli, AWordThatIsNoneIsSaidWithTheVariableTheEntryOrTheOptionThatHasIt) {
  const std::string file = (folder_ / "c.json").string();
  const auto expect = [](const Outcome& outcome, const std::string& words) {
    EXPECT_EQ(outcome.code, 2) << outcome.err;
    EXPECT_THAT(outcome.err, HasSubstr("demi: [" + words));
  };
  const std::vector<std::vector<std::string>> words{
      {"DEMI_PRECISION", "precision", "no such precision"},
      {"DEMI_LOSS_SCALE", "loss_scale", "the loss scale is not a positive number"},
      {"DEMI_DATA", "data", "no such data set"},
      {"DEMI_DEVICE", "device", "no such device"}};
  for (const auto& one : words) {
    const std::string said = "] " + one[2] + "; seen: foo";
    expect(run({"train", "mlp"}, [&] { setenv(one[0].c_str(), "foo", 1); }), one[0] + said);
    std::ofstream(file) << nlohmann::json{{one[1], "foo"}};
    expect(run({"train", "mlp", "--config", file}), one[1] + " in " + file + said);
  }
  expect(run({"train", "mlp", "--mp=false"}),
         "--mixed-precision] the option takes no value; seen: false");
  expect(run({"train", "mlp", "--no-skip=maybe"}), "--no-skip] ");
}

// As `--config <(jq ... config.json)` in a shell: the text is there once.
TEST_F(Cli, AConfigFileMayBeAPipe) {
  const Outcome outcome = run({"train", "--config", "/dev/stdin", "--json"}, [] {
    const std::string text =
        R"({"recipe": "mlp", "in": 8, "out": 8, "batches": 2, "epochs": 1, "batch_size": 4})";
    int ends[2];
    if (pipe(ends) != 0 || write(ends[1], text.data(), text.size()) < 0) _exit(99);
    dup2(ends[0], STDIN_FILENO);
    close(ends[1]);
  });
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_EQ(nlohmann::json::parse(outcome.out)["batch_size"], 4);
}

// Both commands look in the folder that the environment names; `train` took its documented variable
// for the name of a data set.
TEST_F(Cli, TheFolderOfTheDataSetsIsDemiDataDir) {
  fs::create_directories(folder_ / "sets" / "cifar10");
  std::ofstream(folder_ / "sets" / "cifar10" / "data_batch_1.bin") << "no record";
  setenv("DEMI_DATA_DIR", (folder_ / "sets").c_str(), 1);
  const Outcome trained = run({"train", "cifar10-cnn"}),
                checked = run({"data", "check", "cifar10"});
  unsetenv("DEMI_DATA_DIR");
  for (const Outcome& outcome : {trained, checked}) {
    EXPECT_EQ(outcome.code, 3);
    EXPECT_THAT(outcome.err, HasSubstr((folder_ / "sets" / "cifar10" / "data_batch_").string()));
  }
  setenv("DEMI_DATA", (folder_ / "sets").c_str(), 1);
  const Outcome named = run({"train", "cifar10-cnn"});
  unsetenv("DEMI_DATA");
  EXPECT_EQ(named.code, 2);
  EXPECT_THAT(named.err, HasSubstr("name the folder with --data-dir or DEMI_DATA_DIR"));
}

TEST_F(Cli, ALossThatIsNoNumberIsExplainedAndExitsWith1) {
  const Outcome outcome = run({"train", "mlp", "--in", "8", "--out", "8", "--batches", "200",
                               "--epochs", "1", "--batch-size", "4", "--lr", "1e30", "--mp"});
  EXPECT_EQ(outcome.code, 1);
  for (const char* word : {"step", "learning rate 1e+30", "--no-autocast", "--no-scaler"})
    EXPECT_THAT(outcome.err, HasSubstr(word));
}

TEST_F(Cli, SweepComparesOnceAValue) {
  const Outcome outcome = run({"compare", "mlp", "--in", "16", "--out", "16", "--batches", "2",
                               "--epochs", "1", "--sweep", "batch-size=4,5"});
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_THAT(outcome.out, HasSubstr("sweep of batch-size"));
  const Outcome wrong = run({"compare", "mlp", "--sweep", "batch-siz=4"});
  EXPECT_EQ(wrong.code, 2);
  EXPECT_THAT(wrong.err, HasSubstr("did you mean batch-size?"));
}

// What the recipe sets for its own optimizer and schedule is left out, as it is for --optimizer
// sgd; what is typed for one value and not for another is refused before any is trained.
TEST_F(Cli, AValueOfASweepIsResolvedAsIfItWereTypedAlone) {
  const std::string text = (folder_ / "text").string();
  for (int i = 0; i < 200; ++i) std::ofstream(text, std::ios::app) << "to be or not to be\n";
  const auto swept = [&](const Words& more) {
    std::istringstream small(
        "compare gpt-shakespeare --data text --tokenizer bytes --depth 1 --heads 1 --embedding 8 "
        "--context 8 --batch-size 2 --tokens-per-step 16 --eval-every 2 --epochs 1 --device cpu "
        "--runs fp32 --train-file " +
        text);
    Words words{std::istream_iterator<std::string>(small), {}};
    words.insert(words.end(), more.begin(), more.end());
    return run(words);
  };
  const fs::path runs = folder_ / "runs";
  const Outcome refused = swept({"--betas", "0.9,0.95", "--sweep", "optimizer=adamw,sgd"});
  EXPECT_EQ(refused.code, 2) << refused.err;
  EXPECT_THAT(refused.err, HasSubstr("betas"));
  EXPECT_FALSE(fs::exists(runs)) << "adamw was trained before sgd was refused";
  const Outcome optimizers = swept({"--sweep", "optimizer=adamw,sgd"});
  EXPECT_EQ(optimizers.code, 0) << optimizers.err;
  EXPECT_THAT(slurp(runs / "compare-gpt-shakespeare-002" / "config.json"),
              AllOf(HasSubstr("\"optimizer\": \"sgd\""), HasSubstr("\"betas\": \"\"")));
  const Outcome schedules = swept({"--sweep", "schedule=constant"});
  EXPECT_EQ(schedules.code, 0) << schedules.err;
  EXPECT_THAT(slurp(runs / "compare-gpt-shakespeare-003" / "config.json"),
              HasSubstr("\"min_lr\": 0,"));
}

// Hours of comparisons were lost with the value that failed after them.
TEST_F(Cli, ASweepKeepsTheRowsBeforeAValueThatFails) {
  const std::string good = (folder_ / "good.txt").string(), gone = (folder_ / "gone.txt").string();
  for (int i = 0; i < 200; ++i) std::ofstream(good, std::ios::app) << "to be or not to be\n";
  Words words{"compare", "gpt-shakespeare", "--data", "text", "--tokenizer", "bytes"};
  words.insert(words.end(),
               {"--depth",      "1",  "--heads",           "1",
                "--embedding",  "8",  "--context",         "8",
                "--batch-size", "2",  "--tokens-per-step", "16",
                "--eval-every", "1",  "--epochs",          "1",
                "--train-file", good, "--sweep",           "train-file=" + good + "," + gone});
  const Outcome text = run(words);
  EXPECT_EQ(text.code, 3) << text.err;
  EXPECT_THAT(text.err, HasSubstr(gone));
  EXPECT_THAT(text.out, AllOf(HasSubstr("sweep of train-file"), HasSubstr("good.txt"),
                              Not(HasSubstr("gone.txt"))));
  words.push_back("--json");
  const auto json = nlohmann::json::parse(run(words).out);
  ASSERT_EQ(json["rows"].size(), 1u);
  EXPECT_EQ(json["rows"][0]["value"], good);
}

TEST_F(Cli, ASweepThatASignalEndsKeepsTheRowsBefore) {
  const Words words{"compare",   "mlp",  "--in",         "8",       "--out",           "8",
                    "--batches", "2",    "--batch-size", "4",       "--device",        "cpu",
                    "--runs",    "fp32", "--json",       "--sweep", "epochs=1,1000000"};
  const pid_t child = start(words);
  const fs::path second = folder_ / "runs" / "compare-mlp-002" / "metrics.jsonl";
  EXPECT_TRUE(demi::wait_until([&] { return !slurp(second).empty() || has_ended(child); }));
  kill(child, SIGINT);
  const Outcome outcome = finish(child);
  EXPECT_EQ(outcome.code, 128 + SIGINT) << outcome.err;
  const auto json = nlohmann::json::parse(outcome.out, nullptr, /*allow_exceptions=*/false);
  ASSERT_EQ(json["rows"].size(), 1u) << outcome.out;
  EXPECT_EQ(json["rows"][0]["value"], "1");
}

// Among what writes one setting the last one counts, as where a script appends what it changes.
TEST_F(Cli, TheLastOptionCounts) {
  const auto trained = [&](Words more) {
    more.insert(more.begin(), {"train", "mlp", "--in", "8", "--out", "8", "--batches", "2",
                               "--batch-size", "4", "--epochs", "1", "--device", "cpu", "--json"});
    const Outcome outcome = run(more);
    EXPECT_EQ(outcome.code, 0) << outcome.err;
    return nlohmann::json::parse(outcome.out, nullptr, false);
  };
  EXPECT_EQ(trained({"--mp", "--precision", "fp32"})["runs"][0]["precision"], "fp32");
  EXPECT_EQ(trained({"--precision", "fp32", "--mp"})["runs"][0]["precision"], "bf16");
  EXPECT_EQ(trained({"--epochs", "3", "--epochs=2"})["epochs"], 2);
  const auto config = [&](const char* number, const std::string& entry) {
    EXPECT_THAT(slurp(folder_ / "runs" / (std::string("train-mlp-00") + number) / "config.json"),
                HasSubstr(entry));
  };
  trained({"--no-skip", "--skip", "--deterministic", "--no-deterministic"});
  config("4", "\"skip\": true");
  config("4", "\"deterministic\": false");
  trained({"--skip", "--no-skip", "--autocast=false", "--flush-subnormals=0"});
  config("5", "\"skip\": false");
  config("5", "\"autocast\": false");
  config("5", "\"flush_subnormals\": false");
  EXPECT_EQ(run({"train", "mlp", "mlp"}).code, 2) << "a second recipe is none";
}

TEST_F(Cli, AVariantIsNoPartOfAPrecision) {
  const Outcome outcome = run({"train", "mlp", "--precision", "fp16:scale=128:no-skip"});
  EXPECT_EQ(outcome.code, 2);
  EXPECT_THAT(outcome.err, HasSubstr("--precision fp16 --loss-scale 128 --no-skip"));
  setenv("DEMI_PRECISION", "fp99", 1);
  EXPECT_EQ(run({"compare", "mlp", "--dry-run"}).code, 2);
  unsetenv("DEMI_PRECISION");
  const Outcome eval = run({"train", "mlp", "--loss-scale", "128", "--no-scaler"});
  EXPECT_EQ(eval.code, 2) << "a scale and none";
}

TEST_F(Cli, WhatCompareDoesNotTakeIsSaid) {
  const Words small{"compare", "mlp",          "--in", "8",        "--out", "8",        "--batches",
                    "2",       "--batch-size", "4",    "--epochs", "1",     "--device", "cpu"};
  const auto with = [&](Words more) {
    more.insert(more.begin(), small.begin(), small.end());
    return run(more);
  };
  for (const char* sweep : {"precision=fp32,fp16", "loss-scale=64,1024", "resume=auto", "ranks=1,2",
                            "dry-run=true", "devices=cpu", "keep-best=1,2"}) {
    const Outcome outcome = with({"--sweep", sweep});
    EXPECT_EQ(outcome.code, 2) << sweep;
    EXPECT_THAT(outcome.err, HasSubstr("[--sweep] no comparison takes this setting")) << sweep;
  }
  setenv("DEMI_LOSS_SCALE", "64", 1);
  setenv("DEMI_BATCHSIZE", "3", 1);
  const Outcome noted = with({"--runs", "fp16", "--dry-run"});
  unsetenv("DEMI_LOSS_SCALE");
  unsetenv("DEMI_BATCHSIZE");
  EXPECT_EQ(noted.code, 0) << noted.err;
  EXPECT_THAT(noted.err, HasSubstr("DEMI_LOSS_SCALE has no effect on demi compare"));
  EXPECT_THAT(noted.err, HasSubstr("did you mean DEMI_BATCH_SIZE?"));
  EXPECT_FALSE(fs::exists(folder_ / "runs"));

  // A comparison's own file gives it back, and a sweep's folders name their value.
  ASSERT_EQ(with({"--runs", "bf16,fp16:scale=128.0", "--interleave=1"}).code, 0);
  const fs::path runs = folder_ / "runs";
  const Outcome again =
      run({"compare", "--config", (runs / "compare-mlp-001" / "config.json").string(), "--json"});
  ASSERT_EQ(again.code, 0) << again.err;
  const auto json = nlohmann::json::parse(again.out);
  EXPECT_EQ(json["interleave"], 1);
  EXPECT_EQ(json["runs"][0]["precision"], "bf16");
  EXPECT_EQ(json["runs"][1]["precision"], "fp16:scale=128");
  ASSERT_EQ(with({"--runs", "fp32", "--sweep", "seed=5,6"}).code, 0);
  EXPECT_THAT(slurp(runs / "compare-mlp-004" / "config.json"), HasSubstr("--seed 6\""));
}

// 0 threads are LibTorch's choice, also after a comparison with 2.
TEST_F(Cli, EachComparisonOfASweepHasItsOwnThreads) {
  const Outcome outcome = run(
      {"compare", "mlp", "--in", "8", "--out", "8", "--batches", "2", "--batch-size", "4",
       "--epochs", "1", "--device", "cpu", "--runs", "fp32", "--sweep", "threads=2,0", "--json"},
      [] { setenv("OMP_NUM_THREADS", "1", 1); });
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  const auto rows = nlohmann::json::parse(outcome.out)["rows"];
  EXPECT_EQ(rows[0]["comparison"]["machine"]["threads"], 2);
  EXPECT_EQ(rows[1]["comparison"]["machine"]["threads"], 1);
}

// A file of another recipe is trained as it says, under the name that was typed.
TEST_F(Cli, AFileOfAnotherRecipeIsSaid) {
  const Words small{"train", "mlp",          "--in", "8",        "--out", "8",        "--batches",
                    "2",     "--batch-size", "4",    "--epochs", "1",     "--device", "cpu"};
  ASSERT_EQ(run(small).code, 0);
  const std::string file = (folder_ / "runs" / "train-mlp-001" / "config.json").string();
  const Outcome other = run({"train", "fashion-cnn", "--config", file});
  EXPECT_EQ(other.code, 0) << other.err;
  EXPECT_THAT(other.err, HasSubstr("note: " + file + " is of the recipe mlp"));
  EXPECT_THAT(run({"train", "mlp", "--config", file}).err, Not(HasSubstr("is of the recipe")));
}

TEST_F(Cli, WordsOfOtherProgramsAreUnderstood) {
  const auto expect = [&](const Words& arguments, const char* words) {
    const Outcome outcome = run(arguments);
    EXPECT_EQ(outcome.code, 2);
    EXPECT_THAT(outcome.err, HasSubstr(words));
  };
  expect({"train", "mlp", "--learning-rate", "1"}, "did you mean --lr?");
  expect({"train", "mlp", "--bs", "1"}, "did you mean --batch-size?");
  expect({"train", "mlp", "--wd", "1"}, "did you mean --weight-decay?");
  expect({"train", "mlp", "--clip", "1"}, "did you mean --clip-norm?");
  expect({"train", "mlp", "--gpu"}, "did you mean --device cuda?");
  expect({"train", "mlp", "--half"}, "did you mean --precision fp16?");
  expect({"train", "mlp", "--amp"}, "did you mean --mp?");
  expect({"compare", "mlp", "--mp"}, "did you mean --runs fp32,bf16?");
  expect({"compare", "mlp", "--loss-scale", "3"}, "did you mean --runs fp32,fp16:scale=128?");
  expect({"train", "mlp", "--device", "gpu"}, "did you mean cuda?");
  expect({"fit"}, "did you mean train?");
  std::ofstream(folder_ / "c.json") << R"({"learning_rate": 1})";
  expect({"train", "mlp", "--config", (folder_ / "c.json").string()}, "did you mean lr?");
  const Outcome help = run({"help"}), of_train = run({"help", "train"});
  EXPECT_EQ(help.code, 0);
  EXPECT_EQ(help.out, run({"--help"}).out);
  EXPECT_EQ(of_train.out, run({"train", "--help"}).out);
}

TEST_F(Cli, ASettingThatDoesNothingHereIsRefused) {
  for (const Words& words : {Words{"--crop-padding", "4"},
                             {"--horizontal-flip"},
                             {"--pool", "mean"},
                             {"--test-limit", "3"},
                             {"--optimizer", "adam", "--momentum", "0.9"},
                             {"--label-smoothing", "0.1"},
                             {"--schedule-epochs", "3"},
                             {"--init-scale", "8"},
                             {"--mp", "--init-scale", "8", "--device", "cpu"},
                             {"--early-stopping", "1"},
                             {"--fp32-part", "layers.0", "--precision", "bf16-true"},
                             {"--limit", "4", "--overfit-batches", "1"}}) {
    Words all{"train", "mlp", "--in", "8", "--out", "8", "--dry-run"};
    all.insert(all.end(), words.begin(), words.end());
    const Outcome outcome = run(all);
    EXPECT_EQ(outcome.code, 2) << words.front() << outcome.err;
    EXPECT_THAT(outcome.err, HasSubstr(words.size() > 2 ? "--" : words.front()));
  }
  EXPECT_EQ(
      run({"compare", "mlp", "--in", "8", "--out", "8", "--dry-run", "--init-scale", "8"}).code, 0)
      << "its runs have scales of their own";
}

// Two steps, though each takes three batches.
TEST_F(Cli, ADryRunTakesTwoSteps) {
  const auto json =
      nlohmann::json::parse(run({"train", "mlp", "--in", "8", "--out", "8", "--batch-size", "4",
                                 "--dry-run", "--accumulate", "3", "--json"})
                                .out);
  EXPECT_EQ(json["runs"][0]["steps"], 2);
}

// 2 x 2 pixels: red, green, blue, white.
constexpr unsigned char kPng[] = {
    0x89, 0x50, 0x4e, 0x47, 0x0d, 0x0a, 0x1a, 0x0a, 0x00, 0x00, 0x00, 0x0d, 0x49, 0x48, 0x44,
    0x52, 0x00, 0x00, 0x00, 0x02, 0x00, 0x00, 0x00, 0x02, 0x08, 0x02, 0x00, 0x00, 0x00, 0xfd,
    0xd4, 0x9a, 0x73, 0x00, 0x00, 0x00, 0x12, 0x49, 0x44, 0x41, 0x54, 0x78, 0xda, 0x63, 0xf8,
    0xcf, 0xc0, 0xc0, 0x00, 0xc2, 0x0c, 0xff, 0x81, 0x00, 0x00, 0x1f, 0xee, 0x05, 0xfb, 0xf1,
    0xab, 0xba, 0x77, 0x00, 0x00, 0x00, 0x00, 0x49, 0x45, 0x4e, 0x44, 0xae, 0x42, 0x60, 0x82};

// Two classes of three pictures each for training and one for testing.
void write_pictures(const fs::path& folder) {
  for (const char* name : {"train/a/1.png", "train/a/2.png", "train/a/3.png", "train/b/1.png",
                           "train/b/2.png", "train/b/3.png", "val/a/1.png", "val/b/1.png"}) {
    fs::create_directories((folder / name).parent_path());
    std::ofstream(folder / name, std::ios::binary)
        .write(reinterpret_cast<const char*>(kPng), sizeof kPng);
  }
}

TEST_F(Cli, TrainsOnAFolderOfPicturesAndNamesTheDamagedOne) {
  write_pictures(folder_ / "pictures");
  const std::vector<std::string> arguments{"train",        "folder-resnet50",
                                           "--model",      "resnet18",
                                           "--image-size", "32",
                                           "--data-dir",   (folder_ / "pictures").string(),
                                           "--batch-size", "3",
                                           "--workers",    "1",
                                           "--epochs",     "1",
                                           "--steps",      "2"};
  const Outcome sound = run(arguments);
  if (sound.code == 2 && sound.err.find("cannot decode") != std::string::npos)
    GTEST_SKIP() << "built without libpng";
  ASSERT_EQ(sound.code, 0) << sound.err;
  EXPECT_THAT(sound.out, HasSubstr("6 training and 2 test examples"));
  const fs::path damaged = folder_ / "pictures" / "train" / "b" / "2.png";
  fs::resize_file(damaged, sizeof kPng / 2);
  const Outcome broken = run(arguments);
  EXPECT_EQ(broken.code, 3) << broken.err;
  EXPECT_THAT(broken.err, HasSubstr(damaged.string()));
  const Outcome nowhere = run({"train", "folder-resnet50"});
  EXPECT_EQ(nowhere.code, 2) << nowhere.err;
  EXPECT_THAT(nowhere.err, HasSubstr("add --data-dir"));
}

std::string in_one_line(const std::string& text) {
  std::istringstream words(text);
  std::string all;
  for (std::string word; words >> word;) all += (all.empty() ? "" : " ") + word;
  return all;
}

TEST_F(Cli, HelpShowsWhatTheRecipeSets) {
  const Outcome named = run({"train", "cifar10-cnn", "--help"});
  ASSERT_EQ(named.code, 0) << named.err;
  for (const char* words : {"cifar10-cnn", "--data cifar10", "--normalize half", "--epochs 5",
                            "--epochs INT", "--lr FLOAT"})
    EXPECT_THAT(named.out, HasSubstr(words));
  EXPECT_THAT(named.out, Not(HasSubstr("--lr 0.001"))) << "that is the default";
  EXPECT_THAT(run({"train", "--help"}).out, HasSubstr("train RECIPE --help"));

  const Outcome by_default = run({"compare", "--help"});
  for (const char* option :
       {"--data TEXT .*\\[fashion-mnist\\] --data-dir", "--epochs INT .*\\[3\\] --steps",
        "--batch-size INT .*\\[256\\] --test-batch-size"})
    EXPECT_THAT(in_one_line(by_default.out), ContainsRegex(option));
  const Outcome other = run({"compare", "cifar10-resnet18", "--help"});
  EXPECT_THAT(other.out, ContainsRegex("cifar10-resnet18 [^\n]* sets\n.* --data cifar10 "));
}

TEST_F(Cli, DryRunKeepsNothing) {
  const Outcome outcome =
      run({"train", "mlp", "--in", "16", "--out", "16", "--dry-run", "--batch-size", "4"});
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_THAT(outcome.err, HasSubstr("a dry run"));
  EXPECT_FALSE(fs::exists(folder_ / "runs"));
}

// The environment that a running program's OpenMP runtime has read.
TEST_F(Cli, ThreadsWaitAsTheUserSaysElseByTheProgramsOwnSpinCount) {
  starts_for_real_ = true;
  struct Case {
    const char *name, *value, *expected, *absent;
  };
  for (const Case& one :
       {Case{"A_NAME_OF_NO_USE", "1", "GOMP_SPINCOUNT=5000", "OMP_WAIT_POLICY"},
        Case{"GOMP_SPINCOUNT", "7", "GOMP_SPINCOUNT=7", "GOMP_SPINCOUNT=5000"},
        Case{"OMP_WAIT_POLICY", "passive", "OMP_WAIT_POLICY=passive", "GOMP_SPINCOUNT"}}) {
    SCOPED_TRACE(one.name);
    const fs::path runs = folder_ / "runs";
    fs::remove_all(runs);
    const pid_t child =
        start({"train", "mlp", "--in", "8", "--out", "8", "--epochs", "1000000"}, [&] {
          for (const char* other : {"GOMP_SPINCOUNT", "OMP_WAIT_POLICY"}) unsetenv(other);
          setenv(one.name, one.value, 1);
        });
    EXPECT_TRUE(demi::wait_until([&] { return fs::exists(runs) || has_ended(child); }));
    const std::string environment =
        cli_testing::slurp("/proc/" + std::to_string(child) + "/environ");
    kill(child, SIGTERM);
    EXPECT_EQ(finish(child).code, 143);
    EXPECT_THAT(environment, HasSubstr(one.expected));
    EXPECT_THAT(environment, Not(HasSubstr(one.absent)));
  }
}

// Some tools start programs so. The program would start the loader again, with its own arguments.
TEST_F(Cli, StartsUnderALoaderThatWasStartedByHand) {
  constexpr auto kLoader = "/lib64/ld-linux-x86-64.so.2";
  if (!fs::exists(kLoader)) GTEST_SKIP() << "there is no " << kLoader;
  const Outcome outcome = run({}, [] {
    for (const char* decided : {"GOMP_SPINCOUNT", "OMP_WAIT_POLICY"}) unsetenv(decided);
    execl(kLoader, kLoader, std::getenv("DEMI_PROGRAM"), "--version", nullptr);
  });
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_THAT(outcome.out, ::testing::StartsWith("demi "));
}

TEST_F(Cli, ASignalEndsTheStepWritesWhatThereIsAndExitsWith128AndItsNumber) {
  if (!has_data()) GTEST_SKIP() << "Fashion-MNIST (Debian's dataset-fashion-mnist) is not here";
  const pid_t child = start(
      {"compare", "--limit", "6000", "--epochs", "50", "--batch-size", "64", "--runs", "fp32"});
  const fs::path metrics = folder_ / "runs" / "compare-fashion-cnn-001" / "metrics.jsonl";
  EXPECT_TRUE(demi::wait_until([&] { return !slurp(metrics).empty() || has_ended(child); }));
  kill(child, SIGTERM);
  const Outcome outcome = finish(child);
  EXPECT_EQ(outcome.code, 128 + SIGTERM) << outcome.err;
  EXPECT_THAT(outcome.out, HasSubstr("Stopped early"));
  EXPECT_TRUE(fs::exists(folder_ / "runs" / "compare-fashion-cnn-001" / "report.html"));
}

TEST_F(Cli, BenchRecipeAndModelGiveTheWordsThatScriptsRelyOn) {
  const Outcome recipe =
      run({"bench", "recipe",    "mlp", "--in",     "16",  "--out",    "16", "--batch-size",
           "8",     "--batches", "2",   "--device", "cpu", "--warmup", "2",  "--steps",
           "1",     "--rounds",  "1",   "--json"});
  ASSERT_EQ(recipe.code, 0) << recipe.err;
  const auto json = nlohmann::json::parse(recipe.out);
  EXPECT_EQ(json["mixed"], "bf16");
  EXPECT_DOUBLE_EQ(json["speedup"], json["fp32_ms"].get<double>() / json["mixed_ms"].get<double>());
  const Outcome model = run({"bench", "model", "--width", "8,16", "--batch-size", "4", "--device",
                             "cpu", "--warmup", "2", "--steps", "1", "--rounds", "1", "--json"});
  ASSERT_EQ(model.code, 0) << model.err;
  const auto rows = nlohmann::json::parse(model.out)["rows"];
  ASSERT_EQ(rows.size(), 2u);
  EXPECT_EQ(rows[1]["width"], 16);
  EXPECT_GT(rows[1]["fp32_ms"].get<double>(), 0);
  EXPECT_EQ(run({"bench", "recipe", "mlp", "--runs", "fp32"}).code, 2);
}

}  // namespace
}  // namespace cli_testing
