#include "demi/train/trainer.h"

#include <gtest/gtest.h>
#include <torch/nn/functional/loss.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/dropout.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/utils/clip_grad.h>
#include <torch/optim/sgd.h>
#include <torch/utils.h>

#include <chrono>
#include <cmath>
#include <limits>
#include <thread>

#include "demi/core/error.h"
#include "demi/train/testing.h"

namespace demi::train {
namespace {

using testing::Rows;

struct Regression {
  torch::nn::Linear model{nullptr};
  std::shared_ptr<torch::optim::SGD> optimizer;
  at::Tensor input, target;

  explicit Regression(double lr = 0.1) {
    torch::manual_seed(3);
    model = torch::nn::Linear(8, 4);
    input = torch::randn({12, 8});
    target = torch::arange(12) % 4;
    optimizer = std::make_shared<torch::optim::SGD>(model->parameters(), lr);
  }
  Rows loader(int64_t batch_size = 4) const { return {input, target, batch_size}; }
  Trainer trainer(TrainerOptions options) const {
    return {network(model), optimizer, std::move(options)};
  }
};

namespace F = torch::nn::functional;

// The loop that anybody would write by hand.
at::Tensor weights_by_hand(std::optional<c10::ScalarType> low, double clip_norm) {
  Regression s;
  for (int epoch = 0; epoch < 2; ++epoch) {
    for (int64_t start = 0; start < 12; start += 4) {
      at::Tensor x = s.input.slice(0, start, start + 4);
      at::Tensor w = s.model->weight, b = s.model->bias;
      if (low) x = x.to(*low), w = w.to(*low), b = b.to(*low);
      F::cross_entropy(F::linear(x, w, b).to(c10::kFloat), s.target.slice(0, start, start + 4))
          .backward();
      if (clip_norm > 0) torch::nn::utils::clip_grad_norm_(s.model->parameters(), clip_norm);
      s.optimizer->step();
      s.optimizer->zero_grad();
    }
  }
  return s.model->weight.detach();
}

void expect_same_as_by_hand(const char* precision, std::optional<c10::ScalarType> low,
                            double clip_norm) {
  Regression s;
  s.trainer({.epochs = 2, .precision = parse_precision(precision), .clip_norm = clip_norm})
      .fit(s.loader());
  EXPECT_TRUE(torch::equal(s.model->weight, weights_by_hand(low, clip_norm))) << precision;
}

TEST(Trainer, IsTheLoopThatOneWouldWriteByHandBitForBit) {
  expect_same_as_by_hand("fp32", std::nullopt, 0);
  expect_same_as_by_hand("bf16", c10::kBFloat16, 0);
}

TEST(Trainer, ClipsToTheNorm) {
  Regression s;
  s.trainer({.epochs = 2, .clip_norm = 0.05}).fit(s.loader());
  EXPECT_TRUE(torch::allclose(s.model->weight, weights_by_hand(std::nullopt, 0.05), 1e-5, 1e-7));
  EXPECT_FALSE(torch::allclose(s.model->weight, weights_by_hand(std::nullopt, 0), 1e-5, 1e-7));
}

TEST(Trainer, AccumulatedBatchesMakeOneStepOfTheirMean) {
  Regression whole, parts;
  whole.trainer({}).fit(whole.loader(12));
  const History history = parts.trainer({.accumulate = 3}).fit(parts.loader(4));
  EXPECT_TRUE(torch::allclose(whole.model->weight, parts.model->weight, 1e-5, 1e-7));
  ASSERT_EQ(history.steps.size(), 1u);
  EXPECT_EQ(history.epochs.front().examples, 12);
}

TEST(Trainer, HistoryTellsLossAccuracyAndRateOfEachStep) {
  Regression s;
  TrainerOptions options{.epochs = 2, .read_every = 2};
  options.schedule = [](int64_t step, double base) { return base / static_cast<double>(step + 1); };
  Rows loader = s.loader();
  const at::Tensor first = s.model->forward(s.input.slice(0, 0, 4)).detach();
  const History history = s.trainer(options).fit(loader, &loader);
  ASSERT_EQ(history.steps.size(), 6u);
  EXPECT_NEAR(history.steps[0].loss,
              F::cross_entropy(first, s.target.slice(0, 0, 4)).item<double>(), 1e-6);
  EXPECT_EQ(history.steps[0].accuracy,
            first.argmax(1).eq(s.target.slice(0, 0, 4)).to(c10::kDouble).mean().item<double>());
  for (int i = 0; i < 6; ++i) {
    EXPECT_EQ(history.steps[i].step, i + 1);
    EXPECT_DOUBLE_EQ(history.steps[i].learning_rate, 0.1 / (i + 1));
    EXPECT_FALSE(history.steps[i].loss_scale) << "fp32 takes no scaler";
  }
  ASSERT_EQ(history.epochs.size(), 2u);
  const at::Tensor last = s.model->forward(s.input).detach();
  EXPECT_NEAR(history.epochs[1].validation->loss, F::cross_entropy(last, s.target).item<double>(),
              1e-6);
  EXPECT_EQ(history.epochs[1].examples, 12);
}

TEST(Trainer, Fp16TakesAScalerAndSkipsStepsThatOverflow) {
  Regression s;
  s.input.mul_(3e4);  // the scaled gradients of 65536 times that overflow fp16
  const History history =
      s.trainer({.epochs = 1, .precision = parse_precision("fp16")}).fit(s.loader());
  ASSERT_EQ(history.steps.size(), 3u);
  EXPECT_EQ(history.steps[0].loss_scale, 65536);
  EXPECT_TRUE(history.steps[0].skipped);
  EXPECT_EQ(history.steps[1].loss_scale, 32768) << "backed off";
  EXPECT_GE(history.skipped_steps, 1);
}

TEST(Trainer, LossScaleIsAChoiceOfItsOwn) {
  Regression fixed, off;
  const auto precision = parse_precision("fp16");
  const History scaled =
      fixed.trainer({.precision = precision, .loss_scale = {LossScale::Kind::fixed, 128}})
          .fit(fixed.loader());
  for (const StepMetrics& step : scaled.steps) EXPECT_EQ(step.loss_scale, 128);
  const History unscaled =
      off.trainer({.precision = precision, .loss_scale = {LossScale::Kind::off, 0}})
          .fit(off.loader());
  for (const StepMetrics& step : unscaled.steps) EXPECT_FALSE(step.loss_scale);
}

// Losses of 1, with NaN in the steps from `first` to `last`.
History with_nan(int64_t first, int64_t last, TrainerOptions options) {
  Regression s;
  int64_t step = 0;
  options.loss = [=](const at::Tensor& output, const at::Tensor&) mutable {
    ++step;
    return output.sum() * 0 + (step >= first && step <= last ? NAN : 1.0);
  };
  return s.trainer(options).fit(s.loader(1));  // 12 steps an epoch
}

TEST(Trainer, GivesUpOnALossThatStaysNaN) {
  const History history = with_nan(3, 100, {.epochs = 10, .read_every = 1, .give_up_after = 5});
  ASSERT_TRUE(history.failed);
  EXPECT_NE(history.failed->find("from step 3 on, in 5 steps in a row"), std::string::npos)
      << *history.failed;
  EXPECT_FALSE(with_nan(3, 6, {.epochs = 10, .give_up_after = 5}).failed) << "four, then a number";
  EXPECT_FALSE(with_nan(2, 30, {.epochs = 10, .give_up_after = 0}).failed) << "never";
}

TEST(Trainer, AnswersALossThatIsNaNFromTheFirstStepAtOnce) {
  const History history =
      with_nan(1, 1000, {.epochs = 100, .precision = parse_precision("fp16"), .read_every = 100});
  ASSERT_TRUE(history.failed);
  EXPECT_EQ(history.steps.size(), 3u);
  for (const char* said : {"step 1", "learning rate 0.1", "loss scale 65536",
                           "TrainerOptions::autocast", "TrainerOptions::loss_scale"})
    EXPECT_NE(history.failed->find(said), std::string::npos) << said << ": " << *history.failed;
  EXPECT_FALSE(with_nan(1, 2, {.epochs = 10}).failed) << "the third is a number";
  EXPECT_TRUE(with_nan(1, 9, {.max_steps = 2}).failed) << "a dry run has no third";
  EXPECT_FALSE(with_nan(1, 9, {.epochs = 3, .give_up_after = 0}).failed) << "never";
}

// A scale that is too high overflows gradients and is taken back, step by step; the loss is sound.
TEST(Trainer, StepsThatAScalerSkipsAtFirstAreNoFailure) {
  Regression s;
  TrainerOptions options{.epochs = 4, .precision = parse_precision("fp16")};
  options.scaler.init_scale = 0x1p40;
  const History history = s.trainer(options).fit(s.loader());
  EXPECT_GE(history.skipped_steps, 10);
  EXPECT_FALSE(history.failed);
}

TEST(Trainer, EachStepSaysHowLongItTookAndHowLongItWaitedForData) {
  class Slow : public Rows {
   public:
    using Rows::Rows;
    data::Batch batch(int64_t epoch, int64_t position) const override {
      std::this_thread::sleep_for(std::chrono::milliseconds(20));  // what is measured
      return Rows::batch(epoch, position);
    }
  };
  Regression s;
  const History history =
      s.trainer({.epochs = 2, .accumulate = 2}).fit(Slow(s.input, s.target, 3));  // 4 batches
  ASSERT_EQ(history.steps.size(), 4u);
  double steps = 0, waited = 0;
  for (const StepMetrics& step : history.steps) {
    EXPECT_GE(step.data_seconds, 0.04) << "of both batches";
    EXPECT_GE(step.seconds, step.data_seconds);
    steps += step.seconds;
    waited += step.data_seconds;
  }
  EXPECT_LE(steps, history.seconds());
  EXPECT_NEAR(waited, history.epochs[0].phase_seconds[0] + history.epochs[1].phase_seconds[0],
              1e-6);
}

// The smallest normal number halved, and that doubled again.
float least() {
  volatile float normal = std::numeric_limits<float>::min();
  const volatile float half = normal * 0.5F;
  return half * 2.0F;
}

LossFunction look_at(float& seen) {
  return [&seen](const at::Tensor& output, const at::Tensor&) {
    seen = least();
    return output.sum();
  };
}

TEST(Trainer, FlushesSubnormalsOnACpuWhileItTrains) {
  const auto in_training = [&](bool flush) {
    Regression s;
    float seen = -1;
    TrainerOptions options{.flush_subnormals = flush};
    options.loss = look_at(seen);
    s.trainer(options).fit(s.loader());
    return seen;
  };
  EXPECT_EQ(in_training(false), std::numeric_limits<float>::min());
#if defined(__x86_64__) || defined(__aarch64__)
  EXPECT_EQ(in_training(true), 0);
#endif
  EXPECT_EQ(least(), std::numeric_limits<float>::min()) << "afterwards";
}

TEST(Trainer, StopsAfterTheStepInProgressWhenAsked) {
  Regression s;
  int asked = 0;
  TrainerOptions options{.epochs = 100};
  options.should_stop = [&] { return ++asked == 2; };
  const History history = s.trainer(options).fit(s.loader());
  EXPECT_TRUE(history.stopped);
  EXPECT_EQ(history.steps.size(), 2u);
  EXPECT_EQ(history.epochs.size(), 1u);
}

TEST(Trainer, TrueSixteenBitTrainsSixteenBitWeights) {
  Regression s;
  s.trainer({.precision = parse_precision("bf16-true")}).fit(s.loader());
  EXPECT_EQ(s.model->weight.scalar_type(), c10::kBFloat16);
}

TEST(Trainer, OptionsOutOfRangeAreRefused) {
  Regression s;
  EXPECT_THROW(s.trainer({.epochs = -1}), UsageError);
  EXPECT_THROW(s.trainer({}).fit(s.input, s.target, {.epochs = -1}), UsageError);
  EXPECT_THROW(s.trainer({.clip_norm = -1}), UsageError);
  EXPECT_THROW(s.trainer({.accumulate = 0}), UsageError);
  EXPECT_THROW(s.trainer({.label_smoothing = 1}), UsageError);
}

TEST(Evaluate, RunsInEvaluationModeAndGivesTheModeBack) {
  Regression s;
  torch::nn::Sequential model(torch::nn::Linear(8, 4), torch::nn::Dropout(0.5));
  const Rows loader = s.loader();
  const Evaluation one = evaluate(network(model), loader, {});
  const Evaluation two = evaluate(network(model), loader, {});
  EXPECT_EQ(one.loss, two.loss) << "no dropout";
  EXPECT_TRUE(model->is_training());
  EXPECT_TRUE(model->ptr(1)->is_training());
  model->ptr(1)->eval();
  evaluate(network(model), loader, {});
  EXPECT_TRUE(model->is_training());
  EXPECT_FALSE(model->ptr(1)->is_training()) << "a part that was frozen stays frozen";
  EXPECT_THROW(evaluate(network(model), testing::Broken(loader), {}), std::runtime_error);
  EXPECT_TRUE(model->is_training()) << "also where evaluation ends in an error";
}

TEST(Evaluate, FlushesSubnormalsOnACpu) {
  for (const bool flush : {true, false}) {
    Regression s;
    float seen = -1;
    EvaluateOptions options{.flush_subnormals = flush};
    options.loss = look_at(seen);
    evaluate(network(s.model), s.loader(), options);
#if defined(__x86_64__) || defined(__aarch64__)
    EXPECT_EQ(seen, flush ? 0 : std::numeric_limits<float>::min());
#endif
    EXPECT_EQ(least(), std::numeric_limits<float>::min()) << "afterwards";
  }
}

}  // namespace
}  // namespace demi::train
