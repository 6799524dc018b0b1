// A history that forgets its earliest steps, and a checkpoint that holds the last ones alone.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "demi/core/error.h"
#include "demi/train/resume_testing.h"
#include "demi/train/small_testing.h"
#include "demi/weights/recorded_warnings_testing.h"

namespace demi::train {
namespace {

using namespace testing;
using ::testing::HasSubstr;

History of_steps(int64_t last) {
  History history;
  for (int64_t i = 1; i <= last; ++i) history.steps.push_back({.step = i});
  return history;
}

std::vector<int64_t> numbers(const History& history) {
  std::vector<int64_t> all;
  for (const StepMetrics& step : history.steps) all.push_back(step.step);
  return all;
}

TEST(BoundedHistory, HasTheLastStepsAndAtMostATenthMore) {
  for (const int64_t limit : {1, 2, 7, 10, 25, 100}) {
    History growing;
    for (int64_t last = 1; last <= 250; ++last) {
      growing.steps.push_back({.step = last});
      growing.forget_all_but(limit);
      EXPECT_GE(std::ssize(growing.steps), std::min(limit, last));
      EXPECT_LE(std::ssize(growing.steps), limit + limit / 10);
      History at_once = of_steps(last);
      at_once.forget_all_but(limit);
      ASSERT_EQ(numbers(growing), numbers(at_once)) << "whenever it was read before";
    }
  }
  History all = of_steps(30);
  all.forget_all_but(0);
  EXPECT_EQ(all.steps.size(), 30U);
}

/// 3 epochs of 4 steps.
testing::Job small_job(TrainerOptions options = {}) {
  torch::manual_seed(5);
  testing::Job one;
  torch::nn::Sequential model(torch::nn::Linear(6, 8), torch::nn::Linear(8, 3));
  one.network = network(model);
  one.options = std::move(options);
  one.options.epochs = 3;
  one.options.optimizers = {std::make_shared<torch::optim::SGD>(model->parameters(), 0.1)};
  one.training = rows(16, 4, 7);
  one.validation = rows(7, 4, 8);
  return one;
}

TEST(BoundedHistory, OfAResumedRunIsThatOfTheUnbrokenOne) {
  for (const int64_t limit : {1, 5, 10}) {
    const Outcome whole = train(small_job({.history_steps = limit}));
    EXPECT_EQ(std::ssize(whole.history.steps), limit);
    EXPECT_EQ(whole.history.steps.back().step, 12);
    EXPECT_EQ(whole.history.epochs.size(), 3U) << "epochs are few";
    for (int64_t k = 1; k <= 12; ++k) {
      const Outcome part = stopped_after(small_job({.history_steps = limit}), k);
      const Outcome rest = train(small_job({.history_steps = limit}), &part.state);
      SCOPED_TRACE(k);
      expect_same(whole.state, rest.state);
      EXPECT_EQ(numbers(whole.history), numbers(rest.history));
    }
  }
}

TEST(BoundedHistory, ACheckpointHoldsTheLastStepsAndTheCallerAddsTheOthers) {
  const auto options = [] {
    TrainerOptions one;
    one.checkpoints.history_steps = 3;
    return one;
  };
  const Outcome whole = train(small_job(options()));
  EXPECT_EQ(whole.history.steps.size(), 12U);
  EXPECT_EQ(whole.state.state.at("history/steps.loss").numel(), 3);
  const Outcome part = stopped_after(small_job(options()), 8);
  testing::Job next = small_job(options());
  Trainer trainer(next.network, next.options);
  trainer.resume(part.state);
  Trainer::Parts parts(trainer, *next.training, next.validation.get());
  ASSERT_EQ(numbers(parts.history()), (std::vector<int64_t>{6, 7, 8}));
  const std::vector<StepMetrics>& all = whole.history.steps;
  EXPECT_THROW(parts.add_earlier({all.begin(), all.begin() + 4}), UsageError) << "one is missing";
  EXPECT_THROW(parts.add_earlier({all.begin(), all.begin() + 6}), UsageError) << "one is twice";
  parts.add_earlier({});
  parts.add_earlier({all.begin(), all.begin() + 5});
  while (parts.advance(5)) {
  }
  EXPECT_EQ(numbers(parts.history()), numbers(whole.history));
  expect_same(whole.state, copy_of(parts.checkpoint()));
}

TEST(BoundedHistory, NothingComesBeforeAnEmptyOne) {
  testing::Job one = small_job();
  Trainer trainer(one.network, one.options);
  Trainer::Parts parts(trainer, *one.training);
  EXPECT_THROW(parts.add_earlier({{.step = 1}}), UsageError);
}

/// NaN from the n-th step on.
testing::Job with_nan_from(int64_t first, TrainerOptions options) {
  testing::Job one = small_job(std::move(options));
  one.options.epochs = 20;
  one.options.loss = LossFunction([first, module = one.network.module, step = int64_t{0}](
                                      const at::Tensor& output, const at::Tensor& target) mutable {
    const at::Tensor loss = loss_of(Loss::cross_entropy, output, target);
    if (module->is_training()) ++step;
    return module->is_training() && step >= first ? loss * std::nan("") : loss;
  });
  return one;
}

TEST(BoundedHistory, AComplaintIsOfAllBadSteps) {
  const History history =
      train(with_nan_from(5, {.read_every = 1, .history_steps = 3, .give_up_after = 30})).history;
  ASSERT_TRUE(history.failed);
  EXPECT_THAT(*history.failed, HasSubstr("from step 5 on, in 30 steps in a row"));
}

TEST(BoundedHistory, AWarningSaysThatItLooksAtTheLastSteps) {
  const weights::testing::RecordedWarnings warnings;
  train(with_nan_from(2, {.history_steps = 3, .give_up_after = 0}));
  EXPECT_EQ(warnings.holding("so is the loss of 3 of its last 3 steps, first in step 2"), 1);
}

TEST(BoundedHistory, ANegativeNumberIsRefused) {
  EXPECT_THAT(message_of([] {
                testing::Job one = small_job({.history_steps = -1});
                Trainer(one.network, one.options);
              }),
              HasSubstr("history_steps is negative"));
  EXPECT_THAT(message_of([] {
                testing::Job one = small_job();
                one.options.checkpoints.history_steps = -1;
                Trainer(one.network, one.options);
              }),
              HasSubstr("checkpoints.history_steps is negative"));
}

// The first two steps overflow the gradients alone, which a static scale may do; the later ones
// have a loss of Inf. Whether training is given up at once depends on the first.
TEST(BoundedHistory, DoesNotDecideWhenARunIsGivenUp) {
  const auto failed_at = [](int64_t history_steps, int64_t stops_at) {
    const auto make = [=](bool stops) {
      testing::Job one = small_job({.loss_scale = {LossScale::Kind::fixed, 0x1p20},
                                    .read_every = 1,
                                    .history_steps = history_steps,
                                    .give_up_after = 6});
      one.options.losses = [step = stops ? 0 : stops_at](const Network& net,
                                                         const data::Batch& batch) mutable {
        const at::Tensor loss = torch::cross_entropy_loss(net.forward(batch), batch.target);
        return std::vector<at::Tensor>{loss * (++step <= 2 ? 1e35 : 1e39)};
      };
      if (stops) one.options.max_steps = stops_at;
      return one;
    };
    if (stops_at == 0) return train(make(false)).history.steps.back().step;
    const Outcome part = train(make(true));
    return train(make(false), &part.state).history.steps.back().step;
  };
  EXPECT_EQ(failed_at(0, 0), 6);
  EXPECT_EQ(failed_at(1, 0), 6);
  EXPECT_EQ(failed_at(1, 2), 6) << "of a resumed run";
}

}  // namespace
}  // namespace demi::train
