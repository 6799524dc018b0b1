// Each setting does something: a run with another value of it differs, in bits of the weights or in
// what it leaves. A setting without a row here fails the test.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cmath>
#include <cstdint>
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
#include "demi/distributed/ranks_testing.h"
#include "lab/recipes/observer_testing.h"
#include "lab/recipes/run.h"
#include "lab/settings/config_source.h"
#include "lab/settings/resolved.h"
#include "tests/setting_values.h"
#include "tests/small_recipes.h"

namespace demi::recipes {
namespace {

namespace fs = std::filesystem;

using setting_values::Trained, setting_values::trained;

// A setting that no training here shows, and the test that fails if it is passed over.
struct Elsewhere {
  std::string setting, file, suite, test;
};

// The new values of LibTorch's settings.
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
    {"fuse", "tests/cli_fusing_test.cpp", "FusingProgram", "FusesWhatItIsTold"},
    {"channels-last", "tests/cli_fusing_test.cpp", "FusingProgram", "RunsInChannelsLast"},
    {"data-dir", "tests/cli_test.cpp", "Cli", "TheFolderOfTheDataSetsIsDemiDataDir"},
    {"device", "tests/cli_test.cpp", "Cli", "AMissingDeviceExitsWith4"},
    {"devices", "tests/cli_ranks_test.cpp", "CliRanks", "OneForEachDevice"},
    {"ranks", "tests/cli_ranks_test.cpp", "CliRanks", "TrainAsOneProcess"},
    {"sync-batch-norm", "lab/recipes/job_on_ranks_test.cpp", "RanksOfOneProcess",
     "ShareTheStatisticsOfBatchNormUnlessTold"},
    {"shard-optimizer", "tests/cli_ranks_test.cpp", "CliRanks", "ShareTheOptimizersState"},
    {"weight-mode", "lab/settings/resolved_test.cpp", "Plan", "TheWeightModeReachesTheOptimizer"},
    {"cuda-graph", "lab/settings/resolved_test.cpp", "Plan", "TheGraphModeReachesTheTrainer"},
    {"recompute", "lab/workload/workload_test.cpp", "Workload", "RecomputesWhatIsAskedFor"},
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
    setting_values::write_files(folder_);
  }
  ~EverySetting() override { fs::remove_all(folder_); }

  void set_in(settings::Config& config, const std::string& name, const std::string& value) const {
    setting_values::set_in(config, name, value, folder_);
  }

  settings::Config base_of(const Trained& row) {
    auto& known = recipes_[row.recipe];
    if (!known) known = small_recipes::of(row.recipe, folder_ / "data");
    settings::Config config = *known;
    for (const auto& [name, value] : row.base) set_in(config, name, value);
    return config;
  }

  // The files of a run, without times and the text of the settings.
  std::string left_by(const settings::Config& config) {
    auto& known = left_[settings::to_json(config)];
    if (!known.empty()) return known;
    settings::check(config);
    const fs::path folder = folder_ / "run";
    fs::remove_all(folder);
    fs::create_directories(folder);
    const workload::Workload workload = workload::load_workload(config, c10::kCPU);
    int asked = 0;
    testing::Watch watch;
    watch.stops = [&] { return ++asked < 0; };
    const JobOptions options{.folder = folder, .checkpoints = folder / "kept", .observer = &watch};
    const RunResult result = run(settings::resolve(config), workload, options);
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
  std::map<std::string, std::optional<settings::Config>> recipes_;
  std::map<std::string, std::string> left_;
};

TEST_F(EverySetting, HasARow) {
  std::map<std::string, int> rows;
  for (const Trained& row : trained()) ++rows[row.setting];
  for (const Trained& row : kRefused) ++rows[row.setting];
  for (const auto& [setting, value] : kBackends) ++rows[setting];
  for (const char* setting : {"workers", "flush-subnormals"}) ++rows[setting];  // a test below
  for (const Elsewhere& row : kElsewhere) ++rows[row.setting];
  for (const settings::Setting& setting : settings::all_settings())
    EXPECT_GE(rows[setting.name], 1) << setting.name << ": what fails if it is passed over?";
  EXPECT_EQ(rows.size(), settings::all_settings().size()) << "a row of a setting that is none";
}

TEST_F(EverySetting, ChangesTheRun) {
  for (const Trained& row : trained()) {
    SCOPED_TRACE(row.setting + " " + row.value + ", " + row.recipe);
    try {
      const settings::Config base = base_of(row);
      settings::Config changed = base;
      set_in(changed, row.setting, row.value);
      EXPECT_NE(left_by(base), left_by(changed));
    } catch (const std::exception& error) {
      ADD_FAILURE() << error.what();
    }
  }
}

// Two ranks with half of the batch each have the losses of one process: a mean over the same
// examples, whose sums have another order.
TEST_F(EverySetting, TrainsOnRanksAsInOneProcess) {
  // 3; refused; one search in a process.
  const std::set<std::string> alone{"batch-size", "gradient-penalty", "detect-anomaly"},
      random{"dropout"};  // drawn by each rank
  for (const Trained& row : trained()) {
    if (alone.contains(row.setting)) continue;
    SCOPED_TRACE(row.setting + " " + row.value + ", " + row.recipe);
    settings::Config config = base_of(row);
    set_in(config, row.setting, row.value);
    const RunResult one =
        run(settings::resolve(config), workload::load_workload(config, c10::kCPU), {});
    config.ranks = 2;
    config.batch_size /= 2;
    settings::check(config);
    std::vector<workload::Workload> parts;
    for (int64_t rank : {0, 1}) {
      parts.push_back(workload::read_data(settings::resolve(config), {rank, 2})(config.batch_size));
      // Made here, since threads share the generator that each rank has.
      parts.back().make_network = [made = parts.back().make_network(static_cast<uint64_t>(
                                       config.seed))](uint64_t) { return made; };
    }
    std::vector<RunResult> results(2);
    const auto errors = demi::testing::on_ranks(2, [&](distributed::ProcessGroup& group) {
      const auto rank = static_cast<std::size_t>(group.rank());
      results[rank] = run(settings::resolve(config), parts[rank],
                          {.group = {&group, [](distributed::ProcessGroup*) {}}});
    });
    EXPECT_THAT(errors, ::testing::Each(""));
    for (const RunResult& result : results) {
      EXPECT_EQ(result.history.failed.has_value(), one.history.failed.has_value());
      ASSERT_EQ(result.history.steps.size(), one.history.steps.size());
      for (std::size_t i = 0; i < one.history.steps.size(); ++i) {
        const double wanted = one.history.steps[i].loss, seen = result.history.steps[i].loss;
        EXPECT_EQ(fmt::format("{}", seen), fmt::format("{}", results[0].history.steps[i].loss));
        if (!random.contains(row.setting) && std::isfinite(wanted)) {
          EXPECT_NEAR(seen, wanted, 2e-3 * std::abs(wanted)) << "step " << i;
        }
      }
      if (one.test_loss && std::isfinite(*one.test_loss)) {
        EXPECT_NEAR(*result.test_loss, *one.test_loss, 0.01 * std::abs(*one.test_loss));
      }
    }
  }
}

// Else the rows above would show nothing.
TEST_F(EverySetting, AndNothingElseDoes) {
  const settings::Config config = base_of({.setting = "", .value = ""});
  const std::string once = left_by(config);
  left_.clear();
  EXPECT_EQ(left_by(config), once);
}

TEST_F(EverySetting, OfLibTorchBecomesLibTorchs) {
  for (const auto& [setting, value] : kBackends) {
    settings::Config config = settings::find_recipe("mlp").config;
    const Backends before = settings::backends_of(config);
    settings::set(config, setting, value, setting);
    EXPECT_FALSE(settings::backends_of(config) == before) << setting;
  }
}

TEST_F(EverySetting, OfHowItTrainsReachesTheTrainerAndTheLoader) {
  settings::Config config = base_of({.setting = "", .value = ""});
  const auto flushes = [&] {
    return settings::trainer_options(settings::resolve(config), 1).flush_subnormals;
  };
  EXPECT_TRUE(flushes());
  settings::set(config, "flush-subnormals", "false", "");
  EXPECT_FALSE(flushes());
  const auto prefetches = [&] {
    return dynamic_cast<const data::PrefetchLoader*>(
               workload::load_workload(config, c10::kCPU).train.get()) != nullptr;
  };
  EXPECT_FALSE(prefetches());
  settings::set(config, "workers", "1", "");
  EXPECT_TRUE(prefetches());
}

TEST_F(EverySetting, ThatCannotMeanAnythingIsRefused) {
  for (const Trained& row : kRefused) {
    settings::Config config = base_of(row);
    set_in(config, row.setting, row.value);
    EXPECT_THROW(workload::load_workload(config, c10::kCPU), UsageError) << row.recipe;
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
