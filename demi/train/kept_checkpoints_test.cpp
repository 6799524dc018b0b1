// The checkpoints of a run that stay: by keep_every, by best_count, and across a restart.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>
#include <torch/torch.h>

#include <algorithm>
#include <filesystem>
#include <limits>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "demi/checkpoint/manifest.h"
#include "demi/core/error.h"
#include "demi/train/resume_testing.h"
#include "demi/train/small_testing.h"

namespace demi::train {
namespace {

using namespace testing;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
namespace fs = std::filesystem;

class KeptCheckpoints : public ::testing::Test {
 protected:
  KeptCheckpoints() {
    std::string name = (fs::temp_directory_path() / "demi-kept-XXXXXX").string();
    if (!mkdtemp(name.data())) throw std::runtime_error("no temporary folder");
    folder_ = name;
  }
  ~KeptCheckpoints() override { fs::remove_all(folder_); }

  /// Steps of the checkpoints that stand, in order.
  std::vector<int64_t> steps() const {
    std::vector<int64_t> all;
    for (const auto& entry : fs::directory_iterator(folder_))
      if (entry.path().filename().string().starts_with("step-"))
        all.push_back(checkpoint::read_manifest(entry.path()).step);
    std::ranges::sort(all);
    return all;
  }
  int64_t best() const {
    return checkpoint::read_manifest(checkpoint::find(folder_ / "best")).step;
  }

  /// Epochs of 4 steps.
  testing::Job job(CheckpointOptions checkpoints, int64_t epochs = 3) const {
    torch::manual_seed(5);
    testing::Job one;
    torch::nn::Sequential model(torch::nn::Linear(6, 8), torch::nn::Linear(8, 3));
    one.network = network(model);
    one.options.epochs = epochs;
    one.options.optimizers = {std::make_shared<torch::optim::SGD>(model->parameters(), 0.1)};
    one.options.checkpoints = std::move(checkpoints);
    one.options.checkpoints.folder = folder_;
    one.training = rows(16, 4, 7);
    one.validation = rows(7, 4, 8);
    return one;
  }
  /// The validation of epoch e has the e-th of these losses.
  testing::Job with_losses(const std::vector<double>& losses, CheckpointOptions checkpoints) const {
    testing::Job one = job(std::move(checkpoints), static_cast<int64_t>(losses.size()));
    struct State {
      std::size_t epoch = 0;
      bool was_training = true;
    };
    const auto state = std::make_shared<State>();  // evaluation copies the function
    one.options.loss = LossFunction([losses, module = one.network.module, state](
                                        const at::Tensor& output, const at::Tensor& target) {
      const bool trains = module->is_training();
      state->epoch += trains && !state->was_training;
      state->was_training = trains;
      const at::Tensor loss = loss_of(Loss::cross_entropy, output, target);
      return trains ? loss : at::full_like(loss, losses[state->epoch]);
    });
    return one;
  }

  fs::path folder_;
};

TEST_F(KeptCheckpoints, AreSavedAndKeptEverySoManySteps) {
  train(job({.keep_every = {.steps = 5}}));
  EXPECT_THAT(steps(), ElementsAre(5, 10, 12)) << "beside the last";
}

TEST_F(KeptCheckpoints, AreNotThoseThatAreSavedBetweenByAnotherRule) {
  train(job({.every = {.steps = 2}, .keep_every = {.steps = 4}}));
  EXPECT_THAT(steps(), ElementsAre(4, 8, 12));
}

TEST_F(KeptCheckpoints, AreThoseOfEpochs) {
  train(job({.every = {.steps = 1}, .keep_every = {.epochs = 2}}, 5));
  EXPECT_THAT(steps(), ElementsAre(8, 16, 20));
}

// A step of which batches are still to come is none of its multiples.
TEST_F(KeptCheckpoints, AreNotSavedWithinAStep) {
  testing::Job one = job({.keep_every = {.steps = 1}}, 1);
  one.options.accumulate = 2;
  one.options.should_save = [batches = 0]() mutable { return ++batches == 3; };
  train(std::move(one));
  EXPECT_THAT(steps(), ElementsAre(1, 2));
  EXPECT_TRUE(fs::exists(folder_ / "step-00000001")) << "not its second copy, in the next step";
}

TEST_F(KeptCheckpoints, AreThoseOfTheBestEpochs) {
  train(with_losses({5, 3, 4, 1, 6, 2}, {.keep_best = true, .best_count = 3}));
  EXPECT_THAT(steps(), ElementsAre(8, 16, 24)) << "epochs 2, 4 and 6, which is the last, too";
  EXPECT_EQ(best(), 16);
}

TEST_F(KeptCheckpoints, OfEqualEpochsTheEarlierAndNoneOfNaN) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  train(with_losses({nan, 2, 2, 2, 3}, {.keep_best = true, .best_count = 2}));
  EXPECT_THAT(steps(), ElementsAre(8, 12, 20));
  EXPECT_EQ(best(), 8);
}

// Scores are in the manifests: the process that goes on finds them.
TEST_F(KeptCheckpoints, AreTheSameAcrossARestart) {
  const CheckpointOptions options{
      .every = {.steps = 3}, .keep_every = {.epochs = 2}, .keep_best = true, .best_count = 2};
  const auto make = [&] { return with_losses({1, 4, 2, 5, 3, 6}, options); };
  train(make());
  const std::vector<int64_t> unbroken = steps();
  EXPECT_THAT(unbroken, ElementsAre(4, 8, 12, 16, 24));
  fs::remove_all(folder_);
  fs::create_directory(folder_);
  testing::Job part = make();
  part.options.max_steps = 14;
  train(std::move(part));
  EXPECT_THAT(steps(), ElementsAre(4, 8, 12, 14));
  testing::Job rest = with_losses({5, 3, 6}, options);  // from the fourth epoch on
  rest.options.epochs = 6;
  const checkpoint::Checkpoint state = checkpoint::load(folder_);
  train(std::move(rest), &state);
  EXPECT_EQ(steps(), unbroken);
  EXPECT_EQ(best(), 4);
}

TEST(BestBy, IsAccuracyOrLoss) {
  const Evaluation lucky{.loss = 3, .accuracy = 0.9}, calm{.loss = 1, .accuracy = 0.5};
  EXPECT_TRUE(lucky.better_than(calm));
  EXPECT_TRUE(lucky.better_than(calm, BestBy::accuracy));
  EXPECT_FALSE(lucky.better_than(calm, BestBy::loss));
}

// Trained with one rule and resumed with the other: the best epoch is that of the new one.
TEST_F(KeptCheckpoints, OfARunWithAnotherRuleTheBestIsFoundAnew) {
  History history = train(job({.keep_best = true}, 6)).history;
  const auto by = [&](BestBy rule) {
    const EpochRecord* best = &history.epochs.front();
    for (const EpochRecord& one : history.epochs)
      if (one.validation->better_than(*best->validation, rule)) best = &one;
    return best->epoch;
  };
  ASSERT_NE(by(BestBy::accuracy), by(BestBy::loss)) << "else this shows nothing";
  EXPECT_EQ(history.best_epoch, by(BestBy::accuracy));
  const checkpoint::Checkpoint state = checkpoint::load(folder_);
  testing::Job again = job({}, 6);
  again.options.checkpoints.folder.clear();
  again.options.best_by = BestBy::loss;
  EXPECT_EQ(train(std::move(again), &state).history.best_epoch, by(BestBy::loss));
}

TEST_F(KeptCheckpoints, RefuseRulesThatSayNothing) {
  const auto refusal = [&](CheckpointOptions checkpoints, BestBy by = BestBy::automatic) {
    testing::Job one = job(std::move(checkpoints));
    one.options.best_by = by;
    if (by == BestBy::accuracy) one.options.loss = Loss::mse;
    return message_of([&] { Trainer(one.network, one.options); });
  };
  EXPECT_THAT(refusal({.keep_every = {.steps = -1}}), HasSubstr("keep_every is out of range"));
  EXPECT_THAT(refusal({.keep_every = {.minutes = 1}}), HasSubstr("keep_every is out of range"));
  EXPECT_THAT(refusal({.best_count = 0}), HasSubstr("best_count is below 1"));
  EXPECT_THAT(refusal({}, BestBy::accuracy), HasSubstr("which this loss has none of"));
}

}  // namespace
}  // namespace demi::train
