// A Step's records of its steps, and those that a loop may add.
#include "demi/loop/recorder.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <chrono>
#include <functional>
#include <memory>
#include <thread>
#include <vector>

#include "demi/loop/step.h"
#include "demi/optim/sgd.h"

namespace demi::loop {
namespace {

using namespace std::chrono_literals;
using ::testing::ElementsAre;

struct Records : StepObserver {
  std::function<void(const StepView&)> update;
  std::vector<StepMetrics> steps;
  void after_update(const StepView& view) override {
    if (update) update(view);
  }
  void on_step(const StepMetrics& step, int64_t) override { steps.push_back(step); }
};

// One weight, whose loss is the weight times a number.
struct OneWeight {
  torch::nn::Linear model{torch::nn::LinearOptions(1, 1).bias(false)};
  optim::SGD sgd{model->parameters(), optim::SGDOptions(0.5)};
  std::shared_ptr<Records> recorded = std::make_shared<Records>();

  OneWeight() {
    const at::NoGradGuard no_grad;
    model->weight.fill_(8);
  }
  Job job() { return {.models = {model.get()}, .optimizers = {&sgd}}; }
  at::Tensor batch(Step& step, double factor, const MicroBatch& how = {}) {
    return step.batch(Step::Losses([&] { return std::vector{model->weight.sum() * factor}; }), how)
        .front();
  }
};

at::Tensor number(double value) { return at::scalar_tensor(value, at::kFloat); }

TEST(Recorder, DividesTheLossByTheBatchesThatWereWatched) {
  OneWeight one;
  Step step(one.job(), {.accumulate = 3, .read_every = 1});
  one.batch(step, 100);
  step.watch(one.recorded);
  one.batch(step, 1);
  one.batch(step, 2);
  step.finish();
  ASSERT_EQ(one.recorded->steps.size(), 1U);
  EXPECT_EQ(one.recorded->steps[0].loss, (8 + 16) / 2);
}

TEST(Recorder, ForgetsTheSumsOfAStepThatIsDropped) {
  OneWeight one;
  Step step(one.job(), {.accumulate = 2, .read_every = 1});
  step.watch(one.recorded);
  one.batch(step, 100);
  step.drop();
  EXPECT_FALSE(step.recorder().window().is_open());
  one.batch(step, 1);
  one.batch(step, 3);
  step.finish();
  ASSERT_EQ(one.recorded->steps.size(), 1U);
  EXPECT_EQ(one.recorded->steps[0].loss, (8 + 24) / 2);
}

// Also where the Step itself records nothing: whoever adds to the window reads, too.
TEST(Recorder, DividesSumsOfOnesOwnByTheirAnswers) {
  OneWeight one;
  Step step(one.job(), {.accumulate = 2, .read_every = 0});
  Recorder& recorder = step.recorder();
  const auto take = [&](const std::vector<Sums>& batches) {
    for (const Sums& sums : batches) {
      one.batch(step, 1);
      recorder.window().sums.add(sums);
    }
    step.finish();
  };
  take({{.loss = number(6), .correct = number(2), .answers = number(3), .examples = 4},
        {.loss = number(2), .correct = number(1), .answers = number(1), .examples = 4}});
  take({{.loss = number(6), .examples = 4},
        {.loss = number(3), .judged = number(1), .examples = 2}});
  take({{.loss = number(NAN), .correct = number(0), .answers = number(0), .examples = 1},
        {.loss = number(1), .correct = number(0), .answers = number(0), .examples = 1}});
  EXPECT_EQ(recorder.unread(), 3);
  const std::vector<ReadStep> steps = recorder.read();
  EXPECT_EQ(recorder.unread(), 0);
  EXPECT_TRUE(recorder.read().empty());
  ASSERT_EQ(steps.size(), 3U);
  EXPECT_EQ(steps[0].metrics.loss, 8.0 / 4);
  EXPECT_EQ(steps[0].metrics.accuracy, 3.0 / 4);
  EXPECT_EQ(steps[0].judged, 8) << "the loss";
  EXPECT_EQ(steps[0].examples, 8);
  EXPECT_EQ(steps[0].answers, 4);
  EXPECT_EQ(steps[1].metrics.loss, 9.0 / 6);
  EXPECT_FALSE(steps[1].metrics.accuracy);
  EXPECT_EQ(steps[1].judged, 1);
  EXPECT_EQ(steps[1].answers, 6) << "the examples";
  EXPECT_TRUE(std::isnan(steps[2].metrics.loss));
  EXPECT_FALSE(steps[2].metrics.accuracy) << "of none there is none";
  std::vector<int64_t> numbers;
  for (const ReadStep& one_step : steps) numbers.push_back(one_step.metrics.step);
  EXPECT_THAT(numbers, ElementsAre(1, 2, 3));
}

TEST(Recorder, RecordsNothingThatNobodyWatches) {
  OneWeight one;
  Step step(one.job());
  one.batch(step, 1);
  step.finish();
  EXPECT_EQ(step.recorder().unread(), 0);
}

TEST(Recorder, CountsSecondsToTheEndOfTheStep) {
  OneWeight one;
  Step step(one.job(), {.read_every = 2});
  step.watch(one.recorded);
  one.recorded->update = [](const StepView& view) {
    if (view.step == 1) std::this_thread::sleep_for(50ms);
  };
  for (int i = 0; i < 2; ++i) {
    one.batch(step, 1);
    step.finish();
  }
  ASSERT_EQ(one.recorded->steps.size(), 2U);
  EXPECT_GE(one.recorded->steps[0].seconds, 0.05);
}

TEST(Recorder, CountsWhatAWindowHadBefore) {
  OneWeight one;
  Step step(one.job(), {.read_every = 1});
  step.watch(one.recorded);
  Recorder& recorder = step.recorder();
  EXPECT_EQ(recorder.window_until_now().seconds, 0) << "no step is open";
  step.phases().enter(profile::Phase::data);
  std::this_thread::sleep_for(20ms);
  one.batch(step, 1);
  const Window open = recorder.window_until_now();
  EXPECT_TRUE(open.is_open());
  EXPECT_GE(open.seconds, 0.02);
  EXPECT_GE(open.data_seconds, 0.02);
  recorder.window().seconds += 1000;
  recorder.window().data_seconds += 500;
  recorder.leave_out(100s);
  step.finish();
  ASSERT_EQ(one.recorded->steps.size(), 1U);
  EXPECT_NEAR(one.recorded->steps[0].seconds, 900, 50);
  EXPECT_NEAR(one.recorded->steps[0].data_seconds, 500, 50);
}

// What is read then lacks the seconds until the step's end: those are the next one's.
TEST(Recorder, IsReadByAnObserverAfterTheUpdate) {
  OneWeight one;
  Step step(one.job(), {.read_every = 100});
  step.watch(one.recorded);
  one.recorded->update = [&](const StepView&) { step.read(); };
  for (int i = 0; i < 3; ++i) {
    one.batch(step, 1);
    step.finish();
    EXPECT_EQ(one.recorded->steps.size(), static_cast<std::size_t>(i + 1));
  }
}

}  // namespace
}  // namespace demi::loop
