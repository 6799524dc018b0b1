// Each setting does something: a run with another value of it differs, in bits of the weights or in
// what it leaves. A setting without a row here fails the test.
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <fstream>
#include <map>
#include <optional>
#include <regex>
#include <set>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "demi/checkpoint/checkpoint.h"
#include "demi/core/crc32c.h"
#include "demi/core/error.h"
#include "demi/core/source_dir_testing.h"
#include "demi/data/prefetch_loader.h"
#include "lab/recipes/config_source.h"
#include "lab/recipes/resolved.h"
#include "lab/recipes/run.h"
#include "tests/small_recipes.h"

namespace demi::recipes {
namespace {

namespace fs = std::filesystem;

using Settings = std::vector<std::pair<std::string, std::string>>;

// Which recipe is trained twice, with `base` and then with `value` too. In values FOLDER is the
// test's folder.
struct Trained {
  std::string setting, value, recipe = "mlp";
  Settings base = {};
};

// A setting that no training here shows, and the test that fails if it is passed over.
struct Elsewhere {
  std::string setting, file, suite, test;
};

std::vector<Trained> trained() {
  const Settings fp16{{"precision", "fp16"}}, bf16{{"precision", "bf16"}},
      overflows{{"precision", "fp16"}, {"init-scale", "1e37"}, {"epochs", "2"}, {"steps", "0"}},
      whole{{"epochs", "2"}, {"steps", "0"}},
      linear{{"epochs", "2"}, {"steps", "0"}, {"schedule", "linear"}},
      pictures{{"model", "simple-cnn"}, {"image-size", "32"}},
      csv{{"data", "csv"}, {"train-file", "FOLDER/train.csv"}, {"test-file", "FOLDER/test.csv"}};
  return {
      {"model", "simple-cnn", "cifar10-resnet18", {{"model", "fashion-cnn"}}},
      {"data", "synthetic-linear"},
      {"train-file", "FOLDER/other.csv", "imdb-lstm", csv},
      {"test-file", "FOLDER/other.csv", "imdb-lstm", csv},
      {"limit", "8"},
      {"test-limit", "2", "fashion-cnn"},
      {"overfit-batches", "1"},
      {"normalize", "none", "cifar10-cnn"},
      {"crop-padding", "4", "cifar10-cnn"},
      {"horizontal-flip", "true", "cifar10-cnn"},
      {"crop-area", "1", "folder-resnet50", pictures},
      {"in", "8"},
      {"out", "8"},
      {"depth", "2"},
      {"batches", "1"},
      {"input-scale", "2"},
      {"image-size", "64", "synthetic-resnet50", pictures},
      {"classes", "5", "synthetic-resnet50", pictures},
      {"pool", "mean", "imdb-lstm"},
      {"bidirectional", "true", "imdb-lstm"},
      {"embedding", "8", "imdb-lstm"},
      {"hidden", "8", "imdb-lstm"},
      {"vocabulary-size", "4", "imdb-lstm"},
      {"max-length", "3", "imdb-lstm"},
      {"tokenizer", "bytes", "gpt-shakespeare"},
      {"context", "4", "gpt-shakespeare"},
      {"heads", "1", "gpt-shakespeare"},
      {"key-heads", "1", "gpt-shakespeare"},
      {"feed-forward", "8", "gpt-shakespeare"},
      {"tied-head", "off", "gpt-shakespeare"},
      {"norm-eps", "0.5", "gpt-shakespeare"},
      {"rope-theta", "3", "gpt-shakespeare", {{"block", "llama"}}},
      {"block", "llama", "gpt-shakespeare"},
      {"bias", "true", "gpt-shakespeare"},
      {"dropout", "0.5", "gpt-shakespeare"},
      {"eval-every", "1", "gpt-shakespeare", {{"epochs", "2"}, {"steps", "0"}}},
      {"tokens-per-step", "64", "gpt-shakespeare"},
      {"epochs", "2", "mlp", {{"steps", "0"}}},
      {"steps", "1"},
      {"batch-size", "3"},
      {"test-batch-size", "1", "fashion-cnn"},
      {"optimizer", "adam"},
      {"optimizer-options", "beta2=0.9", "mlp", {{"optimizer", "adamw"}}},
      {"betas", "0.9,0.9", "mlp", {{"optimizer", "adamw"}}},
      {"lr", "0.5"},
      {"min-lr", "1e-5", "mlp", linear},
      {"momentum", "0.9"},
      {"nesterov", "true", "mlp", {{"momentum", "0.9"}}},
      {"weight-decay", "0.1"},
      {"decay-by-rule", "true", "mlp", {{"weight-decay", "0.1"}}},
      {"schedule", "linear"},
      {"schedule-epochs", "4", "mlp", linear},
      {"warmup-epochs", "1", "mlp", linear},
      {"schedule-steps", "50", "mlp", linear},
      {"warmup-steps", "1", "mlp", linear},
      {"loss-weight", "2"},
      {"label-smoothing", "0.1", "fashion-cnn"},
      {"clip-norm", "1e-3"},
      {"skip-norm-above", "1e-6"},
      {"gradient-penalty", "0.1"},
      {"accumulate", "2"},
      {"ema", "0.5"},
      {"early-stopping",
       "1",
       "fashion-cnn",
       {{"epochs", "3"}, {"steps", "0"}, {"lr", "0"}, {"schedule", "constant"}}},
      {"top-k", "2", "fashion-cnn"},
      {"precision", "bf16"},
      {"loss-scale", "128", "mlp", fp16},
      {"init-scale", "1024", "mlp", fp16},
      {"growth-factor", "4", "mlp", {{"precision", "fp16"}, {"growth-interval", "1"}}},
      {"growth-interval", "1", "mlp", fp16},
      {"backoff-factor", "0.25", "mlp", overflows},
      {"autocast", "false", "mlp", bf16},
      {"scaler", "false", "mlp", fp16},
      {"skip", "false", "mlp", overflows},
      {"moments", "int8", "mlp", {{"in", "64"}, {"out", "64"}, {"optimizer", "adamw"}}},
      {"fp32-part", "layers.0", "mlp", bf16},
      {"op-policy", "FOLDER/policy", "mlp", bf16},
      {"seed", "7"},
      {"dry-run", "true", "mlp", whole},
      {"monitor", "1"},
      {"detect-anomaly", "true", "mlp", {{"lr", "1e30"}, {"steps", "0"}}},
      {"what-if", "fp16"},
      {"checkpoint-every", "1", "mlp", {{"keep-last", "0"}}},
      {"keep-last", "0", "mlp", {{"checkpoint-every", "1"}}},
      {"keep-every", "1"},
  };
}

// What LibTorch's settings become.
const std::vector<std::pair<std::string, std::string>> kBackends{
    {"cuda-matmul-allow-tf32", "on"},
    {"cudnn-allow-tf32", "off"},
    {"allow-fp16-reduced-precision-reduction", "false"},
    {"allow-bf16-reduced-precision-reduction", "false"},
    {"cudnn-enabled", "false"},
    {"cudnn-benchmark", "true"},
    {"deterministic", "true"},
    {"threads", "2"}};

// Every other word is refused: a model and its data have one loss.
const std::vector<Trained> kRefused{{"loss", "bce", "fashion-cnn"}, {"loss", "mse", "imdb-lstm"}};

const std::vector<Elsewhere> kElsewhere{
    {"model-output", "tests/cli_network_test.cpp", "NetworkProgram", "TakesTheLossOfTheFile"},
    {"data-dir", "tests/cli_test.cpp", "Cli", "TheFolderOfTheDataSetsIsDemiDataDir"},
    {"device", "tests/cli_test.cpp", "Cli", "AMissingDeviceExitsWith4"},
    {"devices", "tests/cli_ranks_test.cpp", "CliRanks", "OneForEachDevice"},
    {"ranks", "tests/cli_ranks_test.cpp", "CliRanks", "TrainAsOneProcess"},
    {"sync-batch-norm", "lab/recipes/job_on_ranks_test.cpp", "RanksOfOneProcess",
     "ShareTheStatisticsOfBatchNormUnlessTold"},
    {"shard-optimizer", "tests/cli_ranks_test.cpp", "CliRanks", "ShareTheOptimizersState"},
    {"weight-mode", "lab/recipes/resolved_test.cpp", "Plan", "TheWeightModeReachesTheOptimizer"},
    {"recompute", "lab/recipes/workload_test.cpp", "Workload", "RecomputesWhatIsAskedFor"},
    {"stop-after", "tests/cli_resume_test.cpp", "Resume", "StopAfterEndsWith75AndAutoGoesOn"},
    {"keep-best", "tests/cli_week_test.cpp", "Week", "KeepsTheBestByTheRuleThatIsAskedFor"},
    {"best-by", "tests/cli_week_test.cpp", "Week", "KeepsTheBestByTheRuleThatIsAskedFor"},
    {"from", "tests/cli_start_test.cpp", "Start", "FromARunBeginsAtStep0WithItsWeights"},
    {"from-state", "lab/recipes/starting_weights_test.cpp", "StartingWeightsTest",
     "GetTheirMomentsByNameAndTheRunsOwnOptions"},
    {"from-average", "lab/recipes/starting_weights_test.cpp", "StartingWeightsTest",
     "AreThoseOfTheCheckpointAndNotItsAverage"},
    {"resume", "tests/cli_resume_test.cpp", "ResumeSettings",
     "AutoGoesOnWithTheNewestUnfinishedRunElseItBeginsOne"},
};

class EverySetting : public ::testing::Test {
 protected:
  EverySetting()
      : folder_(fs::temp_directory_path() / ("demi-settings-" + std::to_string(getpid()))) {
    fs::remove_all(folder_);
    fs::create_directories(folder_);
    std::ofstream(folder_ / "policy") << "addmm fp32\n";
    for (const char* name : {"train.csv", "test.csv", "other.csv"}) {
      std::string rows = "label,text\n";
      const bool is_other = name == std::string_view("other.csv");  // of longer, other texts
      for (int i = 0; i < 12; ++i)
        rows += std::string(i % 2 ? "good,good film " : "bad,bad film ") +
                (is_other ? "bad good bad film" : "") + "\n";
      std::ofstream(folder_ / name) << rows;
    }
  }
  ~EverySetting() override { fs::remove_all(folder_); }

  void set_in(Config& config, const std::string& name, std::string value) const {
    if (const auto at = value.find("FOLDER"); at != value.npos)
      value.replace(at, 6, folder_.string());
    set(config, name, value, "--" + name);
  }

  Config base_of(const Trained& row) {
    auto& known = recipes_[row.recipe];
    if (!known) known = small_recipes::of(row.recipe, folder_ / "data");
    Config config = *known;
    for (const auto& [name, value] : row.base) set_in(config, name, value);
    return config;
  }

  // What a run leaves, times and the text of the settings apart.
  std::string left_by(const Config& config) {
    auto& known = left_[to_json(config)];
    if (!known.empty()) return known;
    check(config);
    const fs::path folder = folder_ / "run";
    fs::remove_all(folder);
    fs::create_directories(folder);
    const Workload workload = load_workload(config, c10::kCPU);
    int asked = 0;
    const JobOptions options{.folder = folder, .checkpoints = folder / "kept", .should_stop = [&] {
                               return ++asked < 0;
                             }};
    const RunResult result = run(resolve(config), workload, options);
    std::ostringstream text;
    for (const train::StepMetrics& step : result.history.steps)
      text << step.epoch << ' ' << fmt::format("{}", step.loss) << ' ' << step.learning_rate << ' '
           << step.loss_scale.value_or(0) << ' ' << step.skipped << '\n';
    text << result.history.failed.value_or("") << fmt::format("{}", result.test_loss.value_or(0))
         << ' ' << result.test_accuracy.value_or(0) << ' ' << result.top_k << ' ' << asked << ' '
         << result.parameters << ' ' << result.health.size() << ' ' << result.origins.size() << ' '
         << result.what_if.has_value() << '\n';
    for (const auto& [name, tensor] : checkpoint::load(folder / "model.safetensors").model)
      text << name << ' ' << crc32c(tensor.const_data_ptr(), tensor.nbytes()) << '\n';
    std::set<std::string> names;
    for (const auto& entry : fs::directory_iterator(folder / "kept"))
      names.insert(entry.path().filename());
    for (const std::string& name : names) text << name << ' ';
    return known = text.str();
  }

  fs::path folder_;
  std::map<std::string, std::optional<Config>> recipes_;
  std::map<std::string, std::string> left_;
};

TEST_F(EverySetting, HasARow) {
  std::map<std::string, int> rows;
  for (const Trained& row : trained()) ++rows[row.setting];
  for (const Trained& row : kRefused) ++rows[row.setting];
  for (const auto& [setting, value] : kBackends) ++rows[setting];
  for (const char* setting : {"workers", "flush-subnormals"}) ++rows[setting];  // a test below
  for (const Elsewhere& row : kElsewhere) ++rows[row.setting];
  for (const Setting& setting : settings())
    EXPECT_GE(rows[setting.name], 1) << setting.name << ": what fails if it is passed over?";
  EXPECT_EQ(rows.size(), settings().size()) << "a row of a setting that is none";
}

TEST_F(EverySetting, ChangesTheRun) {
  for (const Trained& row : trained()) {
    SCOPED_TRACE(row.setting + " " + row.value + ", " + row.recipe);
    try {
      const Config base = base_of(row);
      Config changed = base;
      set_in(changed, row.setting, row.value);
      EXPECT_NE(left_by(base), left_by(changed));
    } catch (const std::exception& error) {
      ADD_FAILURE() << error.what();
    }
  }
}

// Else the rows above would show nothing.
TEST_F(EverySetting, AndNothingElseDoes) {
  const Config config = base_of({.setting = "", .value = ""});
  const std::string once = left_by(config);
  left_.clear();
  EXPECT_EQ(left_by(config), once);
}

TEST_F(EverySetting, OfLibTorchBecomesLibTorchs) {
  for (const auto& [setting, value] : kBackends) {
    Config config = find_recipe("mlp").config;
    const Backends before = backends_of(config);
    set(config, setting, value, setting);
    EXPECT_FALSE(backends_of(config) == before) << setting;
  }
}

TEST_F(EverySetting, OfHowItTrainsReachesTheTrainerAndTheLoader) {
  Config config = base_of({.setting = "", .value = ""});
  const auto flushes = [&] { return trainer_options(resolve(config), 1).flush_subnormals; };
  EXPECT_TRUE(flushes());
  set(config, "flush-subnormals", "false", "");
  EXPECT_FALSE(flushes());
  const auto prefetches = [&] {
    return dynamic_cast<const data::PrefetchLoader*>(
               load_workload(config, c10::kCPU).train.get()) != nullptr;
  };
  EXPECT_FALSE(prefetches());
  set(config, "workers", "1", "");
  EXPECT_TRUE(prefetches());
}

TEST_F(EverySetting, ThatCannotMeanAnythingIsRefused) {
  for (const Trained& row : kRefused) {
    Config config = base_of(row);
    set_in(config, row.setting, row.value);
    EXPECT_THROW(load_workload(config, c10::kCPU), UsageError) << row.recipe;
  }
}

TEST_F(EverySetting, ThatNoTrainingShowsHasATestOfItsOwn) {
  for (const Elsewhere& row : kElsewhere) {
    std::ostringstream text;
    text << std::ifstream(source_dir() / row.file).rdbuf();
    const std::regex test("\nTEST(_F|_P)?\\(" + row.suite + ", " + row.test + "\\) \\{");
    EXPECT_TRUE(std::regex_search(text.str(), test)) << row.setting << ": " << row.file;
  }
}

}  // namespace
}  // namespace demi::recipes
