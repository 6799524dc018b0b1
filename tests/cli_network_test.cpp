// A .pt2 file where a recipe's name stands: trained, tested, compared and asked as a recipe's
// model.
#include <gmock/gmock.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "demi/checkpoint/checkpoint.h"
#include "demi/core/source_dir_testing.h"
#include "demi/imported/zip_testing.h"
#include "tests/cli_testing.h"
#include "tests/small_recipes.h"

namespace cli_testing {
namespace {

using nlohmann::json;
using ::testing::AllOf;

std::string fixture(const std::string& name) {
  return (demi::source_dir() / "tests/fixtures/imported" / name).string();
}

class NetworkProgram : public Cli {
 protected:
  void SetUp() override { setenv("DEMI_CACHE", (folder_ / "cache").c_str(), 1); }

  // CIFAR-10 of a few pictures, and settings with which a run takes a moment.
  Words with_pictures(Words words) {
    const fs::path data = folder_ / "data";
    if (!fs::exists(data)) small_recipes::write_data("cifar10", data);
    for (const std::string& word :
         {std::string("--data"), std::string("cifar10"), std::string("--data-dir"), data.string(),
          std::string("--batch-size"), std::string("4"), std::string("--test-batch-size"),
          std::string("4"), std::string("--device"), std::string("cpu")})
      words.push_back(word);
    return words;
  }

  json result_of(Words words) {
    words.emplace_back("--json");
    const Outcome outcome = run(words);
    EXPECT_EQ(outcome.code, 0) << outcome.err;
    return json::parse(outcome.out, nullptr, /*allow_exceptions=*/false);
  }

  void refused(Words words, int code, const std::vector<std::string>& said) {
    const Outcome outcome = run(words);
    EXPECT_EQ(outcome.code, code) << outcome.err;
    for (const std::string& text : said) EXPECT_THAT(outcome.err, HasSubstr(text));
  }

  fs::path run_folder(const std::string& name) { return folder_ / "runs" / name; }
};

/// make.py trained the same network on the same rows in Python.
TEST_F(NetworkProgram, TrainsAsPython) {
  const Outcome outcome = run({"train", fixture("rows.pt2"), "--data", "synthetic-rows", "--out",
                               "2", "--batch-size", "4", "--batches", "5", "--optimizer", "sgd",
                               "--lr", "0.1", "--loss", "mse", "--device", "cpu"});
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_THAT(outcome.err, AllOf(HasSubstr("input: Float (s"), HasSubstr("aten::linear"),
                                 HasSubstr("46 parameters"), HasSubstr("16 bits")));
  const auto truth = demi::checkpoint::load(fixture("rows.safetensors")).model;
  const fs::path folder = run_folder("train-rows-001");
  const auto trained = demi::checkpoint::load(folder / "model.safetensors").model;
  EXPECT_EQ(trained.size(), 4U);
  for (const auto& [name, tensor] : trained)
    EXPECT_TRUE(tensor.allclose(truth.at(name), 1e-4, 1e-5)) << name;
  std::istringstream lines(slurp(folder / "metrics.jsonl"));
  int step = 0;
  for (std::string line; std::getline(lines, line);) {
    const json one = json::parse(line);
    if (!one.contains("step") || !one.contains("loss")) continue;
    if (step >= 5) break;
    EXPECT_NEAR(one["loss"].get<double>(), truth.at("losses")[step].item<double>(), 1e-4);
    ++step;
  }
  EXPECT_EQ(step, 5);
}

TEST_F(NetworkProgram, TrainsTestsAndPredictsPictures) {
  const json trained = result_of(with_pictures(
      {"train", fixture("pictures.pt2"), "--model-output", "logits", "--mp", "--ema", "0.9"}));
  EXPECT_EQ(trained["runs"].size(), 1U);
  const std::string file = (run_folder("train-pictures-001") / "model.safetensors").string();
  const auto weights = demi::checkpoint::load(file).model;
  EXPECT_EQ(weights.at("conv.weight").scalar_type(), at::kBFloat16);
  EXPECT_EQ(weights.at("bn.running_var").scalar_type(), at::kFloat) << "normalisation is FP32";
  const json tested = json_of({"eval", file});
  EXPECT_EQ(tested["runs"].size(), 2U);
  EXPECT_EQ(tested["runs"][1]["test_loss"], trained["runs"][0]["test_loss"]);
  fs::copy_file(file, folder_ / "moved.safetensors");
  const std::string moved = (folder_ / "moved.safetensors").string();
  const std::string picture = (demi::source_dir() / "tests/fixtures/pictures").string();
  refused({"predict", moved, picture}, 3, {"their network is not here", "--graph pictures.pt2"});
  const Outcome asked =
      run({"predict", moved, picture, "--graph", fixture("pictures.pt2"), "--json"});
  const json predicted = json::parse(asked.out, nullptr, false);
  EXPECT_GT(predicted["predictions"].size(), 0U) << asked.err;
  EXPECT_EQ(predicted["classes"].size(), 10U);
  refused({"predict", moved, picture, "--graph", fixture("rows.pt2")}, 2,
          {"no such output", "logits"});
}

/// A fixture with another activation: its weights fit by name and shape.
void write_other_network(const std::string& of, const fs::path& to) {
  auto contents = demi::imported::contents_of(fixture(of));
  for (const char* model : {"models/model.json", "models/eval.json"}) {
    std::string& text = contents.at(model);
    const bool has_relu = text.find("aten.relu.default") != std::string::npos;
    const std::string from = has_relu ? "aten.relu.default" : "aten.tanh.default";
    text.replace(text.find(from), from.size(),
                 has_relu ? "aten.tanh.default" : "aten.relu.default");
  }
  std::ofstream(to, std::ios::binary) << demi::imported::zip_of(contents);
}

TEST_F(NetworkProgram, KnowsItsNetworkAgain) {
  const fs::path own = folder_ / "net.pt2", other = folder_ / "other.pt2";
  fs::copy_file(fixture("pictures.pt2"), own);
  write_other_network("pictures.pt2", other);
  Words train = with_pictures({"train", own.string(), "--model-output", "logits", "--steps", "1"});
  for (const char* word : {"--checkpoint-every", "1"}) train.emplace_back(word);
  result_of(train);
  const fs::path begun = run_folder("train-net-001");
  const std::string file = (begun / "model.safetensors").string();
  const std::string picture = (demi::source_dir() / "tests/fixtures/pictures").string();
  // Named: it is taken, and said.
  for (const Words& command : {Words{"eval", file}, Words{"predict", file, picture}}) {
    Words words = command;
    words.insert(words.end(), {"--graph", other.string()});
    const Outcome outcome = run(words);
    EXPECT_EQ(outcome.code, 0) << outcome.err;
    EXPECT_THAT(outcome.out + outcome.err,
                AllOf(HasSubstr("other.pt2 is another network than the net.pt2")));
    words.back() = own.string();
    const Outcome same = run(words);
    EXPECT_EQ(same.code, 0) << same.err;
    EXPECT_THAT(same.out + same.err, Not(HasSubstr("another network")));
  }
  // In the place of the one that the run names: refused.
  fs::copy_file(other, own, fs::copy_options::overwrite_existing);
  for (const Words& words : {Words{"eval", file}, Words{"predict", file, picture},
                             Words{"train", "--resume", begun.string(), "--steps", "0"}})
    refused(words, 3, {"net.pt2 is another network than", "identity in the weights' file"});
}

// Rows, of whose data a checkpoint keeps nothing to compare.
TEST_F(NetworkProgram, ResumesRowsInTheirOwnNetworkAlone) {
  const fs::path own = folder_ / "net.pt2", begun = run_folder("train-net-001");
  fs::copy_file(fixture("rows.pt2"), own);
  result_of({"train", own.string(), "--data", "synthetic-rows", "--out", "2", "--batch-size", "4",
             "--batches", "4", "--loss", "mse", "--device", "cpu", "--steps", "2",
             "--checkpoint-every", "1"});
  write_other_network("rows.pt2", own);
  const Words resume{"train", "--resume", begun.string(), "--steps", "0"};
  refused(resume, 3, {"net.pt2 is another network than", "put the .pt2 file of the training back"});
  fs::copy_file(fixture("rows.pt2"), own, fs::copy_options::overwrite_existing);
  result_of(resume);
}

TEST_F(NetworkProgram, ResumesAndStartsFromWeights) {
  const Words words =
      with_pictures({"train", fixture("pictures.pt2"), "--model-output", "logits", "--lr", "0.1"});
  Words two = words, one = words;
  for (const char* word : {"--epochs", "2"}) two.emplace_back(word);
  const json whole = result_of(two);
  for (const char* word : {"--epochs", "2", "--steps", "2", "--checkpoint-every", "1"})
    one.emplace_back(word);
  result_of(one);
  const fs::path begun = run_folder("train-pictures-002");
  const json resumed = result_of({"train", "--resume", begun.string(), "--steps", "0"});
  EXPECT_EQ(resumed["runs"][0]["test_loss"], whole["runs"][0]["test_loss"]);
  const std::string trained = (run_folder("train-pictures-001") / "model.safetensors").string();
  Words from = words;
  for (const std::string& word :
       {std::string("--from"), trained, std::string("--lr"), std::string("0")})
    from.push_back(word);
  result_of(from);
  const auto begun_with = demi::checkpoint::load(trained).model;
  const fs::path started = run_folder("train-pictures-003") / "model.safetensors";
  EXPECT_TRUE(
      demi::checkpoint::load(started).model.at("conv.weight").equal(begun_with.at("conv.weight")));
}

TEST_F(NetworkProgram, TakesTheLossOfTheFile) {
  const json trained =
      result_of(with_pictures({"train", fixture("pictures_loss.pt2"), "--model-output", "loss"}));
  EXPECT_TRUE(trained["runs"][0]["test_accuracy"].is_null());
  EXPECT_GT(trained["runs"][0]["test_loss"].get<double>(), 0);
  const fs::path folder = run_folder("train-pictures_loss-001");
  const json tested = json_of({"eval", (folder / "model.safetensors").string()});
  EXPECT_EQ(tested["runs"][0]["test_loss"], trained["runs"][0]["test_loss"]);
  refused(with_pictures({"train", fixture("pictures.pt2"), "--model-output", "loss"}), 2,
          {"does not compute a loss", "1 inputs, 2 outputs"});
}

TEST_F(NetworkProgram, WorksInEachCommand) {
  const Words words = with_pictures({fixture("pictures.pt2"), "--model-output", "logits"});
  const auto with = [&](Words command, Words more) {
    command.insert(command.end(), words.begin(), words.end());
    command.insert(command.end(), more.begin(), more.end());
    // Commands that train no epochs test nothing.
    if (command[0] != "compare") {
      const auto at = std::find(command.begin(), command.end(), "--test-batch-size");
      command.erase(at, at + 2);
    }
    return command;
  };
  EXPECT_EQ(result_of(with({"compare"}, {"--runs", "fp32,bf16"}))["runs"].size(), 2U);
  for (Words command :
       {with({"profile"}, {"--steps", "1", "--warmup", "1"}),
        with({"bench", "recipe"}, {"--warmup", "2", "--steps", "1", "--rounds", "1"})}) {
    command.emplace_back("--json");
    const Outcome outcome = run(command);
    ASSERT_EQ(outcome.code, 0) << outcome.err;
    EXPECT_EQ(json::parse(outcome.out)["runs"].size(), 2U);
    EXPECT_THAT(outcome.err, AllOf(HasSubstr("exported by PyTorch"), HasSubstr("aten::conv2d")))
        << "what train says before it starts";
  }
  const json layers = result_of(with({"compare"}, {"--runs", "bf16", "--layers=1"}));
  EXPECT_THAT(layers.dump(), AllOf(HasSubstr("\"conv\""), HasSubstr("\"head\"")));
}

TEST_F(NetworkProgram, SaysWhatIsNotNamedOrNotThere) {
  refused({"train", fixture("pictures.pt2")}, 2, {"which data?", "cifar10"});
  refused({"train", "absent.pt2", "--data", "cifar10"}, 3, {"absent.pt2"});
  refused({"train", "net.pth", "--data", "cifar10"}, 2, {"no .pt2 file", "python_model.md"});
  refused({"train", "mlp", "--model-output", "0"}, 2, {"does nothing in this run"});
}

TEST_F(NetworkProgram, HasItsDimensionsChecked) {
  const json model =
      json_of({"doctor", "--model", fixture("pictures.pt2"), "--seconds", "0"})["model"];
  EXPECT_EQ(model["products"], 1);
  EXPECT_EQ(model["convolutions"], 1);
  EXPECT_THAT(model["dimensions"].dump(), AllOf(HasSubstr("\"head\""), HasSubstr("in_features")));
}

TEST_F(NetworkProgram, SaysThatAFileWasExportedForEvaluation) {
  const Outcome outcome = run({"train", fixture("pictures_of_two.pt2"), "--model-output", "logits",
                               "--data", "synthetic-images", "--image-size", "32", "--classes",
                               "10", "--batch-size", "2", "--batches", "2", "--device", "cpu"});
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_THAT(outcome.err, HasSubstr("exported in eval mode"));
}

}  // namespace
}  // namespace cli_testing
