// Runs that do not end well.
#include <ATen/ops/equal.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/linear.h>
#include <torch/types.h>

#include <cmath>
#include <filesystem>
#include <limits>

#include "demi/checkpoint/checkpoint.h"
#include "demi/core/error.h"
#include "demi/optim/sgd.h"
#include "demi/train/testing.h"
#include "demi/train/trainer.h"
#include "lab/recipes/compare.h"
#include "lab/recipes/observer_testing.h"
#include "lab/recipes/run.h"
#include "lab/settings/recipe.h"
#include "lab/workload/weights_file.h"

namespace demi::recipes {
namespace {

namespace fs = std::filesystem;
using train::testing::Broken;
using train::testing::Rows;

constexpr double kNoNumber = std::numeric_limits<double>::quiet_NaN();

// 12 steps an epoch.
struct OnOnes {
  torch::nn::Linear model{nullptr};
  Rows rows{torch::ones({12, 3}), torch::ones({12, 1}), 1};

  OnOnes() {
    torch::manual_seed(3);
    model = torch::nn::Linear(3, 1);
  }
  train::Trainer trainer(train::TrainerOptions options) const {
    options.optimizers = {
        std::make_shared<optim::SGD>(model->parameters(), optim::SGDOptions(0.1))};
    return train::Trainer(train::network(model), std::move(options));
  }
};

// Losses of 1 with a NaN in the steps from `first` to `last`.
train::History losses_with_nan(int64_t first, int64_t last, train::TrainerOptions options) {
  const OnOnes problem;
  int64_t step = 0;
  options.loss = [=](const at::Tensor& output, const at::Tensor&) mutable {
    ++step;
    return output.sum() * 0 + (step >= first && step <= last ? kNoNumber : 1.0);
  };
  return problem.trainer(options).fit(problem.rows);
}

TEST(Failure, IsALossThatIsNaNInTheLastStep) {
  const train::History history = losses_with_nan(24, 24, {.epochs = 2});
  ASSERT_TRUE(history.failed);
  EXPECT_NE(history.failed->find("NaN or Inf from step 24 on, in 1 step;"), std::string::npos)
      << *history.failed;
  EXPECT_TRUE(losses_with_nan(5, 100, {.max_steps = 7}).failed);
  EXPECT_FALSE(losses_with_nan(20, 23, {.epochs = 2}).failed) << "the last one is a number";
  EXPECT_FALSE(losses_with_nan(24, 24, {.epochs = 2, .give_up_after = 0}).failed) << "never";
}

TEST(Failure, IsALossThatIsNaNInTheLastValidation) {
  const auto validated = [](int64_t first_bad_epoch) {
    const OnOnes problem;
    int64_t calls = 0;  // 12 in training and 12 in validation an epoch
    train::TrainerOptions options{.epochs = 2};
    options.loss = [&](const at::Tensor& output, const at::Tensor&) {
      const int64_t epoch = calls / 24 + 1;
      const bool validation = calls++ % 24 >= 12;
      return output.sum() * 0 + (validation && epoch >= first_bad_epoch ? kNoNumber : 1.0);
    };
    return problem.trainer(options).fit(problem.rows, &problem.rows);
  };
  EXPECT_FALSE(validated(3).failed);
  const train::History history = validated(2);
  ASSERT_TRUE(history.failed);
  EXPECT_NE(history.failed->find("in validation"), std::string::npos) << *history.failed;
  EXPECT_EQ(history.best_epoch, 1);
  EXPECT_FALSE(validated(1).best_epoch) << "none was a number";
}

// The loss is 0 and its gradient 0 x Inf.
TEST(Failure, IsAStepThatIsAlwaysSkippedWithoutAScaler) {
  const OnOnes problem;
  train::TrainerOptions options{.epochs = 10};
  options.loss = [](const at::Tensor& output, const at::Tensor&) {
    return (output.sum() * 0).sqrt();
  };
  const train::History history = problem.trainer(options).fit(problem.rows);
  ASSERT_TRUE(history.failed);
  EXPECT_EQ(history.steps.size(), 3u);
  EXPECT_EQ(history.skipped_steps, 3);
  EXPECT_NE(history.failed->find("the gradients hold"), std::string::npos) << *history.failed;
}

TEST(Failure, AnExceptionLeavesTheHistoryOfTheStepsThatWereTaken) {
  const OnOnes problem;
  train::TrainerOptions options{.epochs = 3, .read_every = 100};
  options.loss = train::Loss::mse;
  train::Trainer trainer = problem.trainer(options);
  EXPECT_THROW(trainer.fit(Broken(problem.rows)), std::runtime_error);
  EXPECT_EQ(trainer.history().steps.size(), 11u) << "also those that had not been read";
  EXPECT_TRUE(std::isfinite(trainer.history().steps.back().loss));
  EXPECT_EQ(trainer.history().epochs.size(), 0u);

  struct Full : train::Callback {
    void on_step(const train::StepMetrics& step, int64_t) override {
      if (step.step == 5) throw std::runtime_error("disk full");
    }
  };
  trainer.add(std::make_shared<Full>());
  EXPECT_THROW(trainer.fit(problem.rows), std::runtime_error);
  EXPECT_EQ(trainer.history().steps.size(), 12u) << "each once";
}

settings::Config tiny_mlp() {
  settings::Config config = settings::find_recipe("mlp").config;
  for (const char* name : {"in", "out", "batches", "batch-size"})
    settings::set(config, name, "8", name);
  settings::set(config, "epochs", "1", "epochs");
  return config;
}

class RunFailure : public ::testing::Test {
 protected:
  RunFailure() {
    std::string pattern = (fs::temp_directory_path() / "demi-failure-XXXXXX").string();
    folder_ = mkdtemp(pattern.data());
    workload_ = workload::load_workload(config_, c10::kCPU);
  }
  ~RunFailure() override { fs::remove_all(folder_); }

  RunResult run_now(const settings::Config& config, const std::string& prefix) {
    return run(settings::resolve(config, settings::parse_run("bf16")), workload_,
               {.folder = folder_, .prefix = prefix, .checkpoints = folder_ / (prefix + "kept")});
  }

  // The batches of `workload_` as rows of their own.
  Rows rows() const {
    std::vector<at::Tensor> inputs, targets;
    for (int64_t i = 0; i < workload_.train->batches(); ++i) {
      const data::Batch batch = workload_.train->batch(0, i);
      inputs.push_back(batch.input);
      targets.push_back(batch.target);
    }
    return {torch::cat(inputs), torch::cat(targets), 8};
  }

  fs::path folder_;
  settings::Config config_ = tiny_mlp();
  workload::Workload workload_;
};

TEST_F(RunFailure, AnExceptionInTrainingLeavesTheLastWeightsAndTheState) {
  settings::Config seven = config_;
  seven.steps = 7;
  run_now(seven, "seven-");
  workload_.train = std::make_shared<Broken>(rows());
  EXPECT_THROW(run_now(config_, "broken-"), std::runtime_error);
  const auto expected = checkpoint::load(folder_ / "seven-kept");
  const auto kept = checkpoint::load(folder_ / "broken-kept");
  EXPECT_EQ(kept.text.at("demi.step"), "7");
  EXPECT_EQ(expected.model.size(), 6u);
  for (const auto& [name, tensor] : expected.model)
    EXPECT_TRUE(at::equal(kept.model.at(name), tensor)) << name;
}

TEST_F(RunFailure, WithoutAStepThereIsNothingToKeep) {
  workload_.train = std::make_shared<Broken>(Rows(torch::ones({8, 8}), torch::ones({8, 8}), 8));
  EXPECT_THROW(run_now(config_, ""), std::runtime_error);
  EXPECT_FALSE(fs::exists(folder_ / "kept" / "last"));
}

TEST_F(RunFailure, StepsThatAreSkippedWithoutAScalerAreNamed) {
  settings::Config config = config_;
  config.lr = 1e30;
  const RunResult result = run_now(config, "");
  EXPECT_TRUE(result.history.failed);
  EXPECT_NE(result.remark.find(" of 8 steps were skipped"), std::string::npos) << result.remark;
  EXPECT_EQ(run_now(config_, "").remark, "");
  const RunResult scaled =
      run(settings::resolve(config, settings::parse_run("fp16")), workload_, {});
  EXPECT_GT(scaled.skipped_steps, 0);
  EXPECT_EQ(scaled.remark, "") << "a scaler skips steps to find its scale";
}

/// A set whose targets differ from the second pass on.
class Changes : public Rows {
 public:
  Changes(const Rows& rows, double by) : Rows(rows), by_(by) {}
  data::Batch batch(int64_t epoch, int64_t position) const override {
    data::Batch batch = Rows::batch(epoch, position);
    if (asked_++ >= batches()) batch.target = batch.target + by_;
    return batch;
  }

 private:
  double by_;
  mutable int64_t asked_ = 0;
};

TEST_F(RunFailure, IsALossThatIsNaNWithTheWeightsAsShipped) {
  workload_.test = std::make_shared<Changes>(rows(), kNoNumber);
  const RunResult result = run_now(config_, "");
  ASSERT_TRUE(result.history.failed);
  EXPECT_NE(result.history.failed->find("as shipped"), std::string::npos);
  EXPECT_TRUE(std::isfinite(result.history.epochs.back().validation->loss));
}

// Of three epochs the first is the best: its weights, or their average, are those of a run of one.
TEST_F(RunFailure, TheBestModelIsThatOfTheBestEpoch) {
  config_.schedule = "constant";
  for (const double ema : {0.0, 0.9}) {
    config_.ema = ema;
    workload_.test = std::make_shared<Rows>(rows());
    config_.epochs = 1;
    run_now(config_, "one-");
    workload_.test = std::make_shared<Changes>(rows(), 100);
    config_.epochs = 3;
    run(settings::resolve(config_, settings::parse_run("bf16")), workload_,
        {.checkpoints = folder_ / "three", .keep_best = true});
    const auto expected = workload::read_weights(folder_ / "one-kept");
    const auto best = workload::read_weights(folder_ / "three" / "best");
    ASSERT_EQ(best.size(), expected.size());
    for (const auto& [name, tensor] : expected)
      EXPECT_TRUE(at::equal(best.at(name), tensor)) << name << " ema " << ema;
    const auto text = checkpoint::load(folder_ / "three" / "best").text;
    EXPECT_EQ(text.at("demi.epoch"), "1");
    fs::remove_all(folder_ / "one-kept");
    fs::remove_all(folder_ / "three");
  }
}

TEST_F(RunFailure, AskedToStopBeforeTheFirstStepItTakesNone) {
  testing::Watch watch;
  watch.stops = [] { return true; };
  const RunResult result =
      run(settings::resolve(config_, settings::parse_run("fp32")), workload_,
          {.folder = folder_, .checkpoints = folder_ / "kept", .observer = &watch});
  EXPECT_TRUE(result.history.stopped);
  EXPECT_TRUE(result.history.steps.empty());
  EXPECT_TRUE(fs::is_empty(folder_));
}

// Asked in validation, and in the test of the shipped weights, evaluation ends with the batch in
// progress.
TEST_F(RunFailure, AskedToStopInAnEvaluationItEndsThere) {
  struct Begun : train::Callback {
    bool validation = false, over = false;
    void on_evaluate_begin(int64_t) override { validation = true; }
    void on_epoch_end(const train::EpochRecord&) override { over = true; }
  };
  class Counted : public Rows {
   public:
    Counted(const Rows& rows, int64_t& asked) : Rows(rows), asked_(asked) {}
    data::Batch batch(int64_t epoch, int64_t position) const override {
      ++asked_;
      return Rows::batch(epoch, position);
    }

   private:
    int64_t& asked_;
  };
  int64_t asked = 0;
  workload_.test = std::make_shared<Counted>(rows(), asked);
  const auto begun = std::make_shared<Begun>();
  testing::Watch watch;
  const JobOptions options{
      .folder = folder_, .checkpoints = folder_ / "kept", .observer = &watch, .callbacks = {begun}};
  watch.stops = [&] { return begun->validation && asked == 3; };
  const RunResult validated =
      run(settings::resolve(config_, settings::parse_run("fp32")), workload_, options);
  EXPECT_EQ(asked, 3);
  EXPECT_TRUE(validated.history.stopped);
  ASSERT_EQ(validated.history.epochs.size(), 1u);
  EXPECT_FALSE(validated.history.epochs[0].validation);
  EXPECT_TRUE(fs::exists(folder_ / "kept" / "last"));

  asked = 0;
  watch.stops = [&] { return asked == 8 + 5; };  // 8 of validation
  const RunResult tested =
      run(settings::resolve(config_, settings::parse_run("fp32")), workload_, options);
  EXPECT_EQ(asked, 13);
  EXPECT_TRUE(tested.history.stopped);
  EXPECT_TRUE(tested.history.epochs[0].validation);
  EXPECT_FALSE(tested.test_accuracy_fp32_eval);
  EXPECT_EQ(tested.test_loss, std::nullopt) << "that of a part of the test set is none";
}

TEST(Evaluation, OneOfNaNIsBeatenByEveryNumberAndBeatsNone) {
  const train::Evaluation nan{.loss = kNoNumber}, one{.loss = 1}, two{.loss = 2};
  EXPECT_TRUE(two.better_than(nan));
  EXPECT_FALSE(nan.better_than(two));
  EXPECT_FALSE(nan.better_than(nan));
  EXPECT_TRUE(one.better_than(two));
  EXPECT_FALSE(two.better_than(one));
  const train::Evaluation lucky{.loss = kNoNumber, .accuracy = 0.9},
      sound{.loss = 2, .accuracy = 0.2};
  EXPECT_TRUE(sound.better_than(lucky)) << "argmax of NaN is a class, too";
  EXPECT_FALSE(lucky.better_than(sound));
  EXPECT_TRUE((train::Evaluation{.loss = 3, .accuracy = 0.3}).better_than(sound)) << "by accuracy";
}

}  // namespace
}  // namespace demi::recipes
