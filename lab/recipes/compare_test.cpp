#include "lab/recipes/compare.h"

#include <gtest/gtest.h>
#include <torch/torch.h>
#include <unistd.h>

#include <filesystem>

#include "demi/checkpoint/checkpoint.h"
#include "demi/core/error.h"
#include "demi/data/tensor_loader.h"
#include "demi/profile/memory.h"
#include "demi/train/metric.h"
#include "lab/models/seeded.h"
#include "lab/recipes/observer_testing.h"
#include "lab/recipes/same_run_testing.h"
#include "lab/recipes/small_mlp_testing.h"

namespace demi::recipes {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kClasses = 12;  // above 10, so that the top 5 are counted

// A classification whose network draws random numbers in training and keeps buffers.
workload::Workload workload() {
  const at::Tensor x = torch::linspace(-1, 1, 96 * 6).reshape({96, 6}).sin();
  const at::Tensor y = torch::arange(96).remainder(kClasses);
  workload::Workload result;
  result.train = std::make_shared<data::TensorLoader>(
      x, y, data::OrderOptions{.batch_size = 8, .shuffle = true, .seed = 3});
  result.test = std::make_shared<data::TensorLoader>(x, y, data::OrderOptions{.batch_size = 32});
  for (int64_t i = 0; i < kClasses; ++i) result.classes.push_back(std::to_string(i));
  result.make_network = [](uint64_t seed) {
    const models::Seeded seeded(seed);
    return train::network(torch::nn::Sequential(
        torch::nn::Linear(6, 32), torch::nn::BatchNorm1d(32), torch::nn::ReLU(),
        torch::nn::Dropout(0.5), torch::nn::Linear(32, kClasses)));
  };
  return result;
}

settings::Config config() {
  settings::Config c;
  c.epochs = 2;
  c.batch_size = 8;
  c.optimizer = "adamw";
  c.schedule = "one-cycle";
  c.lr = 1e-2;
  return c;
}

// Compares the files that two comparisons left of those runs.
void expect_same_files(const fs::path& a, const fs::path& b,
                       const std::vector<settings::RunSpec>& runs) {
  for (const settings::RunSpec& run : runs) {
    const std::string name = settings::file_name(run.label), model = name + "-model.safetensors";
    EXPECT_TRUE(same_run::content(a / model) == same_run::content(b / model)) << model;
    same_run::expect_same_checkpoint(a / "checkpoints" / name, b / "checkpoints" / name);
  }
}

class CompareRuns : public ::testing::Test {
 protected:
  CompareRuns()
      : folder_(fs::temp_directory_path() / ("demi-compare-" + std::to_string(getpid()))) {
    profile::count_cpu_memory();
    fs::remove_all(folder_);
  }
  ~CompareRuns() override { fs::remove_all(folder_); }

  Comparison compared(const std::string& runs, int64_t turn_steps, const settings::Config& told,
                      std::function<bool()> should_stop = {}) {
    CompareOptions options{.config = told,
                           .runs = settings::resolve(told, settings::parse_runs(runs)),
                           .turn_steps = turn_steps};
    options.run.folder = folder_ / std::to_string(turn_steps);
    options.run.checkpoints = options.run.folder / "checkpoints";
    options.run.observer = &watch_;
    if (should_stop) watch_.stops = std::move(should_stop);
    fs::create_directories(options.run.folder);
    return compare(options, workload());
  }

  fs::path folder_;
  testing::Watch watch_;
};

// 12 steps an epoch: turns that end within epochs, with them, and beyond.
TEST_F(CompareRuns, TurnsChangeNoBit) {
  const std::string runs = "fp32,bf16,fp16:scale=128";
  const Comparison sequence = compared(runs, 0, config());
  for (const int64_t turn : {1, 5, 12, 100}) {
    const Comparison turns = compared(runs, turn, config());
    EXPECT_EQ(turns.turn_steps, turn);
    SCOPED_TRACE("turns of " + std::to_string(turn));
    expect_same_files(folder_ / std::to_string(turn), folder_ / "0", settings::parse_runs(runs));
    ASSERT_EQ(turns.runs.size(), sequence.runs.size());
    for (std::size_t i = 0; i < turns.runs.size(); ++i) {
      const RunResult &a = turns.runs[i], &b = sequence.runs[i];
      EXPECT_EQ(a.spec.label, b.spec.label);
      ASSERT_EQ(a.history.steps.size(), 24u);
      for (std::size_t step = 0; step < 24; ++step) {
        EXPECT_EQ(a.history.steps[step].loss, b.history.steps[step].loss);
        EXPECT_EQ(a.history.steps[step].accuracy, b.history.steps[step].accuracy);
        EXPECT_EQ(a.history.steps[step].learning_rate, b.history.steps[step].learning_rate);
      }
      ASSERT_EQ(a.history.epochs.size(), 2u);
      EXPECT_EQ(a.history.epochs[1].loss, b.history.epochs[1].loss);
      EXPECT_EQ(a.history.epochs[1].validation->loss, b.history.epochs[1].validation->loss);
      EXPECT_EQ(a.test_loss, b.test_loss);
      EXPECT_EQ(a.test_accuracy, b.test_accuracy);
      EXPECT_EQ(a.test_top_k_accuracy, b.test_top_k_accuracy);
      EXPECT_EQ(a.test_accuracy_fp32_eval, b.test_accuracy_fp32_eval);
      // The order of the examples, which a loader makes with its first batch, counts as data here.
      EXPECT_EQ(a.peak_bytes + a.data_bytes, b.peak_bytes + b.data_bytes)
          << a.spec.label << ": its own, alone";
      EXPECT_NEAR(static_cast<double>(a.peak_bytes), static_cast<double>(b.peak_bytes), 4096);
      EXPECT_EQ(a.peak_resident_bytes, 0) << "the process held all runs";
    }
  }
}

TEST_F(CompareRuns, AccumulatedBatchesEndATurnOnlyAfterTheirStep) {
  settings::Config told = config();
  told.accumulate = 5;  // 12 batches: steps of 5, 5 and 2
  const Comparison sequence = compared("fp32,bf16", 0, told);
  const Comparison turns = compared("fp32,bf16", 1, told);
  expect_same_files(folder_ / "1", folder_ / "0", settings::parse_runs("fp32,bf16"));
  EXPECT_EQ(turns.runs[1].history.steps.size(), 6u);
  EXPECT_EQ(turns.runs[1].history.steps[5].loss, sequence.runs[1].history.steps[5].loss);
}

TEST_F(CompareRuns, EachTurnIsAnnounced) {
  compared("fp32,bf16", 12, config());
  EXPECT_EQ(watch_.begun, "fp32 bf16 fp32 bf16 ");
  watch_.begun.clear();
  compared("fp32,bf16", 0, config());
  EXPECT_EQ(watch_.begun, "fp32 bf16 ");
}

// In the second turn of the first run, with the other one waiting.
TEST_F(CompareRuns, ASignalStopsAllOfThemAndLeavesWhatThereIs) {
  int asked = 0;
  const Comparison result = compared("fp32,bf16", 4, config(), [&] { return ++asked > 10; });
  EXPECT_TRUE(result.stopped);
  ASSERT_EQ(result.runs.size(), 2u);
  for (const RunResult& run : result.runs) {
    EXPECT_TRUE(run.history.stopped) << run.spec.label;
    EXPECT_FALSE(run.test_accuracy);
    EXPECT_TRUE(fs::exists(folder_ / "4" / "checkpoints" / run.spec.label / "last"));
  }
  EXPECT_LT(result.runs[0].history.steps.size(), 9u);
}

// Data that end in an error in the last batch of the first run, when the second has done 8 steps.
TEST_F(CompareRuns, AnErrorInOneRunLeavesTheLastWeightsOfAll) {
  class Ending : public data::Loader {
   public:
    explicit Ending(std::shared_ptr<const data::Loader> all) : all_(std::move(all)) {}
    int64_t examples() const override { return all_->examples(); }
    int64_t batches() const override { return all_->batches(); }
    data::Batch batch(int64_t epoch, int64_t position) const override {
      if (position + 1 == batches()) throw std::runtime_error("broken");
      return all_->batch(epoch, position);
    }

   private:
    std::shared_ptr<const data::Loader> all_;
  };
  workload::Workload broken = workload();
  broken.train = std::make_shared<Ending>(broken.train);
  CompareOptions options{.config = config(),
                         .runs = settings::resolve(config(), settings::parse_runs("fp32,bf16")),
                         .turn_steps = 4};
  options.run.folder = folder_;
  options.run.checkpoints = folder_ / "checkpoints";
  fs::create_directories(folder_);
  EXPECT_THROW(compare(options, broken), std::runtime_error);
  EXPECT_EQ(checkpoint::load(folder_ / "checkpoints" / "fp32").text.at("demi.step"), "11");
  EXPECT_EQ(checkpoint::load(folder_ / "checkpoints" / "bf16").text.at("demi.step"), "8");
}

TEST_F(CompareRuns, KnowTheirShareOfTheCores) {
  const Comparison result = compared("fp32,bf16", 7, config());
  for (const RunResult& run : result.runs) {
    EXPECT_GE(run.involuntary_switches, 0);
    if (!run.cores_share) GTEST_SKIP() << "this kernel does not tell how long threads queue";
    EXPECT_GT(*run.cores_share, 0);
    EXPECT_LE(*run.cores_share, 1);
  }
}

TEST_F(CompareRuns, OneRunAloneTakesNoTurns) {
  EXPECT_EQ(compared("fp32", 5, config()).turn_steps, 0);
}

TEST(TopK, IsOfFiveWithMoreThanTenClassesOrAsAsked) {
  EXPECT_EQ(train::top_k_of(0, 10), 0);
  EXPECT_EQ(train::top_k_of(0, 11), 5);
  EXPECT_EQ(train::top_k_of(0, 0), 0) << "a regression";
  EXPECT_EQ(train::top_k_of(3, 10), 3);
  EXPECT_EQ(train::top_k_of(9, 10), 9);
  EXPECT_THROW(train::top_k_of(10, 10), UsageError) << "every example would be right";
  EXPECT_THROW(train::top_k_of(5, 2), UsageError);
  EXPECT_THROW(train::top_k_of(5, 0), UsageError) << "a regression has no classes";
}

// An example counts if fewer than k logits are above its class's: the definition, by counting.
TEST(TopK, CountsExamplesWithFewerThanKLogitsAboveTheirs) {
  const models::Seeded seeded(0);
  for (const auto dtype : {torch::kFloat, torch::kBFloat16, torch::kHalf, torch::kDouble}) {
    // Each row a permutation of whole numbers, exact in every format: no two are equal.
    const at::Tensor logits = torch::rand({40, 30}).argsort(int64_t{1}, false).to(dtype);
    const at::Tensor target = torch::randint(0, 30, {40}, torch::kLong);
    const at::Tensor own = logits.gather(1, target.unsqueeze(1));
    const at::Tensor above = logits.gt(own).sum(1);
    for (const int64_t k : {1, 5, 29, 30, 40}) {
      EXPECT_EQ(train::top_k(k).sum(logits, target).item<int64_t>(),
                above.lt(k).sum().item<int64_t>())
          << "top " << k << " in " << dtype;
    }
  }
  EXPECT_EQ(train::top_k(5).name, "top5_accuracy");
}

// 8 batches, of which 3 make a step.
TEST(Compare, CountsAndSchedulesStepsOfAccumulatedBatches) {
  settings::Config config = small_mlp();
  config.accumulate = 3;
  config.schedule = "linear";
  const workload::Workload workload = workload::load_workload(config, c10::kCPU);
  const Comparison result =
      compare({.config = config, .runs = {settings::resolve(config, settings::parse_run("fp32"))}},
              workload);
  const auto& steps = result.runs[0].history.steps;
  EXPECT_EQ(result.steps_per_epoch, 3);
  ASSERT_EQ(steps.size(), 3u);
  EXPECT_DOUBLE_EQ(steps[1].learning_rate, config.lr * 2 / 3);
  EXPECT_DOUBLE_EQ(steps[2].learning_rate, config.lr / 3);
}

}  // namespace
}  // namespace demi::recipes
