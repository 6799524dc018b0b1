// Each option that no other test would miss: one that fails if it is passed over, and where it is
// refused. docs/reference/trainer.md lists the test of each.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cmath>
#include <filesystem>
#include <functional>
#include <limits>

#include "demi/backends/backends.h"
#include "demi/core/error.h"
#include "demi/optim/adamw.h"
#include "demi/train/names.h"
#include "demi/train/small_testing.h"
#include "demi/train/trainer.h"

namespace demi::train {
namespace {

using ::testing::HasSubstr;
using testing::message_of;
using testing::Rows;
using testing::Small;
namespace F = torch::nn::functional;

TEST(TrainerOption, AutocastFalseIsFp32ThatIsScaled) {
  Small fp32, off, on;
  fp32.trainer().fit(fp32.loader());
  const History history =
      off.trainer({.precision = parse_precision("fp16"), .autocast = false}).fit(off.loader());
  on.trainer({.precision = parse_precision("fp16")}).fit(on.loader());
  EXPECT_TRUE(torch::allclose(off.weight(), fp32.weight(), 1e-6, 1e-8)) << "scaled and unscaled";
  EXPECT_GT((on.weight() - fp32.weight()).abs().max().item<double>(), 1e-5);
  EXPECT_EQ(history.steps[0].loss_scale, 65536);
}

TEST(TrainerOption, ScalerEnabledFalseIsNoScaler) {
  Small s;
  TrainerOptions options{.precision = parse_precision("fp16")};
  options.scaler.enabled = false;
  EXPECT_FALSE(s.trainer(options).fit(s.loader()).steps[0].loss_scale);
  for (const char* asked : {"dynamic", "statistics", "128"}) {
    options.loss_scale = parse_loss_scale(asked);
    EXPECT_THAT(message_of([&] { s.trainer(options); }), HasSubstr("the scaler is off")) << asked;
  }
}

TEST(TrainerOption, ScalerModeIsWhatTheLossScaleLeavesToIt) {
  Small s;
  TrainerOptions options{.epochs = 2, .precision = parse_precision("fp16")};
  options.scaler = {.init_scale = 4, .growth_interval = 1, .mode = ScaleMode::kStatic};
  for (const StepMetrics& step : s.trainer(options).fit(s.loader()).steps)
    EXPECT_EQ(step.loss_scale, 4);
  for (const char* asked : {"dynamic", "statistics"}) {
    options.loss_scale = parse_loss_scale(asked);
    EXPECT_THAT(message_of([&] { s.trainer(options); }), HasSubstr("contradict")) << asked;
  }
  options.loss_scale = parse_loss_scale("dynamic");
  options.scaler.mode = ScaleMode::kDynamic;
  EXPECT_EQ(s.trainer(options).fit(s.loader()).steps[1].loss_scale, 8);
}

TEST(TrainerOption, LossHasAWeight) {
  Small s, by_hand;
  const at::Tensor wanted = torch::randn({8, 3});
  s.trainer({.loss = {Loss::mse, 0.25}}).fit(Rows(s.input, wanted, 8));
  by_hand.step(0.25 * (by_hand.model(s.input) - wanted).square().mean());
  EXPECT_TRUE(torch::allclose(s.weight(), by_hand.weight(), 1e-6, 1e-8));
  EXPECT_THAT(message_of([] { LossFunction(Loss::mse, NAN); }), HasSubstr("no number"));
}

TEST(TrainerOption, LabelSmoothingIsThatOfCrossEntropy) {
  Small s, by_hand;
  s.trainer({.label_smoothing = 0.3}).fit(s.loader(8));
  by_hand.step(F::cross_entropy(by_hand.model(s.input), s.target,
                                F::CrossEntropyFuncOptions().label_smoothing(0.3)));
  EXPECT_TRUE(torch::allclose(s.weight(), by_hand.weight(), 1e-6, 1e-8));
  const LossFunction own = [](const at::Tensor& o, const at::Tensor&) { return o.sum(); };
  for (const LossFunction& loss : {LossFunction(Loss::mse), LossFunction(Loss::bce_with_logits),
                                   LossFunction(Loss::cross_entropy_probabilities), own})
    EXPECT_THAT(message_of([&] { s.trainer({.loss = loss, .label_smoothing = 0.1}); }),
                HasSubstr("no effect with this loss"));
  TrainerOptions several{.label_smoothing = 0.1};
  several.losses = [](const Network&, const data::Batch&) { return std::vector<at::Tensor>(); };
  EXPECT_THAT(message_of([&] { s.trainer(several); }), HasSubstr("no effect with this loss"));
}

TEST(TrainerOption, ReadEveryIsHowLongCallbacksWait) {
  class Order : public Callback {
   public:
    void after_update(const StepView&) override { told += 'u'; }
    void on_step(const StepMetrics&, int64_t) override { told += 's'; }
    std::string told;
  };
  // The third step is read in any case: a loss that is NaN from the start is told at once.
  for (const auto& [every, first] :
       std::vector<std::pair<int64_t, std::size_t>>{{1, 1}, {2, 2}, {4, 3}, {100, 3}}) {
    Small s(9);
    const auto order = std::make_shared<Order>();
    Trainer trainer = s.trainer({.read_every = every});
    trainer.add(order);
    trainer.fit(s.loader(1));
    EXPECT_EQ(order->told.find('s'), first) << order->told;
    EXPECT_EQ(order->told.find(every == 100 ? "uuuuuussssss" : "us"), every == 100 ? 6 : first - 1)
        << order->told;
  }
}

TEST(TrainerOption, OutOfRange) {
  Small s;
  const double nan = NAN, inf = std::numeric_limits<double>::infinity();
  const auto refused = [&](TrainerOptions options, const char* word) {
    EXPECT_THAT(message_of([&] { s.trainer(std::move(options)); }), HasSubstr(word));
  };
  refused({.epochs = -1}, "epochs");
  refused({.max_steps = -1}, "max_steps");
  for (const double wrong : {-0.1, 1.0, nan}) {
    refused({.label_smoothing = wrong}, "label_smoothing");
    refused({.ema_decay = wrong}, "ema_decay");
  }
  for (const double wrong : {-1.0, nan}) refused({.clip_norm = wrong}, "clip_norm");
  for (const double wrong : {-1.0, nan, inf})
    refused({.gradient_penalty = wrong}, "gradient_penalty");
  for (const int64_t wrong : {0, -1}) {
    refused({.accumulate = wrong}, "accumulate");
    refused({.read_every = wrong}, "read_every");
  }
  refused({.early_stopping = -1}, "early_stopping");
  refused({.give_up_after = -1}, "give_up_after");
  refused({.loss_scale = {LossScale::Kind::fixed, 0}}, "init_scale");
  refused({.backends = {.threads = 0}}, "threads");
  refused({.checkpoints = {.every = {.steps = -5}}}, "checkpoints.every");
  refused({.checkpoints = {.every = {.epochs = -5}}}, "checkpoints.every");
  for (const double wrong : {-1.0, nan, inf})
    refused({.checkpoints = {.every = {.minutes = wrong}}}, "checkpoints.every");
  refused({.checkpoints = {.keep_last = -1}}, "keep_last");
  refused({.checkpoints = {.retry_seconds = -1}}, "retry_seconds");
  refused({.checkpoints = {.retry_seconds = std::numeric_limits<double>::infinity()}},
          "retry_seconds");
  EXPECT_NO_THROW(s.trainer({.clip_norm = inf})) << "measures, and clips nothing";
}

// In a region weights are FP32, or bf16 that the optimizer trains as FP32.
TEST(TrainerOption, WeightsOf16BitsInARegionNeedAWeightMode) {
  Small s;
  s.model->to(at::kBFloat16);
  const auto message = [&](optim::WeightMode mode) {
    TrainerOptions options{.precision = parse_precision("bf16")};
    options.optimizers = {std::make_shared<optim::AdamW>(
        s.model->parameters(), optim::AdamWOptions(0.1), optim::StepOptions{.weight_mode = mode})};
    return message_of([&] { s.trainer(options).fit(s.loader()); });
  };
  EXPECT_THAT(message(optim::WeightMode::master), HasSubstr("have another format"));
  EXPECT_EQ(message(optim::WeightMode::split), "nothing was thrown");
}

TEST(TrainerOption, WhatNeedsAValidationIsRefusedWithoutOne) {
  Small s;
  const Rows rows = s.loader();
  Trainer waits = s.trainer({.early_stopping = 1});
  EXPECT_THAT(message_of([&] { waits.fit(rows); }), HasSubstr("early stopping needs a validation"));
  EXPECT_NO_THROW(waits.fit(rows, &rows));
  const auto folder = std::filesystem::temp_directory_path() / "demi_keep_best_without";
  std::filesystem::remove_all(folder);
  EXPECT_THAT(message_of([&] {
                s.trainer({.checkpoints = {.folder = folder, .keep_best = true}}).fit(rows);
              }),
              HasSubstr("keep_best"));
  EXPECT_NO_THROW(s.trainer({.checkpoints = {.keep_best = true}}).fit(rows)) << "none are saved";
  std::filesystem::remove_all(folder);
}

TEST(FitOption, BatchSizeOrderAndEpochsAreThoseOfTheLoop) {
  Small s, by_hand, seed0, seed1;
  s.trainer().fit(s.input, s.target, {.epochs = 2, .batch_size = 3, .shuffle = false});
  for (int epoch = 0; epoch < 2; ++epoch)
    for (const int64_t start : {0, 3, 6})
      by_hand.step(F::cross_entropy(by_hand.model(s.input.slice(0, start, start + 3)),
                                    s.target.slice(0, start, start + 3)));
  EXPECT_TRUE(torch::equal(s.weight(), by_hand.weight()));
  seed0.trainer().fit(s.input, s.target, {.batch_size = 3, .seed = 0});
  seed1.trainer().fit(s.input, s.target, {.batch_size = 3, .seed = 1});
  EXPECT_FALSE(torch::equal(seed0.weight(), seed1.weight()));
  EXPECT_THROW(s.trainer().fit(s.input, s.target, {.batch_size = 0}), UsageError);
  EXPECT_THROW(s.trainer().fit(s.input, s.target.slice(0, 1)), UsageError);
}

TEST(EvaluateOption, PrecisionIsThatOfTheRegion) {
  Small s;
  const at::Tensor low =
      F::linear(s.input.to(torch::kBFloat16), s.model->weight.to(torch::kBFloat16),
                s.model->bias.to(torch::kBFloat16));
  const Evaluation result =
      evaluate(network(s.model), s.loader(8), {.precision = parse_precision("bf16")});
  EXPECT_NEAR(result.loss, F::cross_entropy(low.to(torch::kFloat), s.target).item<double>(), 1e-7);
}

TEST(EvaluateOption, ShouldStopEndsItBeforeABatch) {
  Small s;
  EvaluateOptions options;
  options.should_stop = [left = 3]() mutable { return --left == 0; };
  const Evaluation result = evaluate(network(s.model), s.loader(2), options);
  EXPECT_TRUE(result.stopped);
  EXPECT_EQ(result.examples, 4);
}

TEST(EvaluateOption, BackendsHoldInIt) {
  Small s;
  std::optional<Backends> seen;
  EvaluateOptions options{.backends = {.cudnn_benchmark = true}};
  options.loss = [&](const at::Tensor& output, const at::Tensor&) {
    seen = Backends::current();
    return output.sum();
  };
  evaluate(network(s.model), s.loader(), options);
  EXPECT_EQ(seen->cudnn_benchmark, true);
  EXPECT_EQ(Backends::current().cudnn_benchmark, false);
}

}  // namespace
}  // namespace demi::train
