// Runs that start from saved weights (--from), as a user starts them.
#include <gmock/gmock.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "demi/checkpoint/checkpoint.h"
#include "demi/checkpoint/manifest.h"
#include "lab/recipes/same_run_testing.h"
#include "tests/cli_testing.h"

namespace cli_testing {
namespace {

class Start : public Cli {
 protected:
  Start() { EXPECT_EQ(run(mlp({})).code, 0); }

  static Words mlp(const Words& more) {
    Words words{"train",        "mlp", "--in",  "8",   "--out",    "8",   "--batches", "4",
                "--batch-size", "4",   "--ema", "0.5", "--device", "cpu", "--json"};
    words.insert(words.end(), more.begin(), more.end());
    return words;
  }

  fs::path run_folder(int number) const {
    return folder_ / "runs" / ("train-mlp-00" + std::to_string(number));
  }
  std::string first() const { return run_folder(1).string(); }

  demi::checkpoint::NamedTensors weights(int number) const {
    return demi::checkpoint::load(run_folder(number)).model;
  }

  std::string run_id(int number) const {
    return demi::checkpoint::read_manifest(demi::checkpoint::find(run_folder(number))).run;
  }

  // Refused in these words, and no run was begun.
  void expect_refusal(const Words& words, int code, const std::vector<std::string>& said) {
    const Outcome outcome = run(words);
    EXPECT_EQ(outcome.code, code) << outcome.err;
    for (const std::string& text : said) EXPECT_THAT(outcome.err, HasSubstr(text));
    EXPECT_FALSE(fs::exists(run_folder(2)));
  }
};

TEST_F(Start, FromARunBeginsAtStep0WithItsWeights) {
  const Outcome outcome =
      run(mlp({"--from", first(), "--lr", "0", "--seed", "7", "--epochs", "1"}));
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_THAT(outcome.err, HasSubstr("note: starts from " + first() +
                                     "/checkpoints/step-00000012: the weights of step 12"));
  same_run::expect_same_tensors(weights(2), weights(1));
  EXPECT_NE(run_id(2), run_id(1)) << "another run, whose checkpoints are not the first one's";
  const auto json = nlohmann::json::parse(outcome.out);
  EXPECT_EQ(json["from"], first());
  EXPECT_EQ(json["runs"][0]["steps"], 4) << "its own";
  // The recipe is that of the folder around the weights, too.
  const Outcome again = run({"train", "--in", "8", "--out", "8", "--batches", "4", "--batch-size",
                             "4", "--lr", "0", "--device", "cpu", "--json", "--from",
                             (run_folder(1) / "checkpoints" / "last").string()});
  ASSERT_EQ(again.code, 0) << again.err;
  same_run::expect_same_tensors(weights(3), weights(1));
}

TEST_F(Start, WhatDoesNotGoTogetherIsRefusedBeforeAnythingBegins) {
  for (const std::string resume : {"auto", first().c_str()})
    expect_refusal(mlp({"--from", first(), "--resume", resume}), 2,
                   {"--from begins a new one", "--from " + first() + " --resume " + resume});
  expect_refusal(mlp({"--from-state"}), 2, {"none are named", "add --from RUN"});
  expect_refusal(mlp({"--from", first(), "--from-state", "--from-average"}), 2,
                 {"--from-state --from-average"});
  expect_refusal(mlp({"--from", ""}), 2, {"no run is named"});
  expect_refusal(mlp({"--from", first() + "/none"}), 3, {"none is no checkpoint"});
  expect_refusal(mlp({"--from", first(), "--depth", "4"}), 3,
                 {"layers.6.weight is missing; layers.6.bias is missing", "--depth 3"});
}

// A script that is started again and again says it in a file.
TEST_F(Start, AFileMaySayItBesideResumeAuto) {
  std::ofstream(folder_ / "start.json") << nlohmann::json{{"from", first()}, {"lr", 0}};
  const Words again = mlp({"--config", (folder_ / "start.json").string(), "--resume", "auto"});
  ASSERT_EQ(run(again).code, 0);
  fs::remove(run_folder(2) / "result.json");
  fs::remove_all(run_folder(1));  // it is not needed any more
  const Outcome outcome = run(again);
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_THAT(outcome.err, HasSubstr("is trained already, in 12 steps"));
  EXPECT_FALSE(fs::exists(run_folder(3)));
}

TEST_F(Start, EachRunOfAComparisonStartsFromThem) {
  Words words = mlp({"--runs", "fp32,bf16-true", "--lr", "0", "--from", first()});
  words.front() = "compare";
  const Outcome outcome = run(words);
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_THAT(outcome.err, HasSubstr("note: fp32 starts from"));
  EXPECT_THAT(outcome.err, HasSubstr("of step 12, fp32 rounded to bf16"));
  const fs::path all = folder_ / "runs" / "compare-mlp-001" / "checkpoints";
  same_run::expect_same_tensors(demi::checkpoint::load(all / "fp32").model, weights(1));
  auto rounded = weights(1);
  for (auto& [name, tensor] : rounded) tensor = tensor.to(at::kBFloat16);
  same_run::expect_same_tensors(demi::checkpoint::load(all / "bf16-true").model, rounded);
  words.erase(std::ranges::find(words, "--ema"), std::ranges::find(words, "--ema") + 2);
  words.insert(words.end(), {"--layers=1", "--runs", "bf16"});
  EXPECT_EQ(run(words).code, 0);
}

TEST_F(Start, TheHelpOfARecipeShowsWhatItSetsThen) {
  const Outcome outcome = run({"train", "folder-resnet50", "--help"});
  EXPECT_THAT(outcome.out, HasSubstr("With --from it sets\n  --epochs 15 --batch-size 32"));
}

}  // namespace
}  // namespace cli_testing
