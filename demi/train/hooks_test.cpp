// The view of callbacks on a step while it is taken, and the norm of its gradients in the records.
#include <gtest/gtest.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/sgd.h>
#include <torch/utils.h>

#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "demi/optim/sgd.h"
#include "demi/train/history_columns.h"
#include "demi/train/names.h"
#include "demi/train/testing.h"
#include "demi/train/trainer.h"

namespace demi::train {
namespace {

using testing::Rows;

// Output w x without bias, loss (w x - y)^2: its gradient is 2 (w x - y) x.
struct OneWeightJob {
  torch::nn::Linear model{torch::nn::LinearOptions(1, 1).bias(false)};
  explicit OneWeightJob(double weight = 2) {
    const at::NoGradGuard no_grad;
    model->weight.fill_(weight);
  }
  Trainer trainer(TrainerOptions options) const {
    options.loss = Loss::mse;
    options.optimizers = {
        std::make_shared<optim::SGD>(model->parameters(), optim::SGDOptions(0.25))};
    return {network(model), std::move(options)};
  }
};

Rows single_rows(std::vector<float> x, std::vector<float> y) {
  const auto n = static_cast<int64_t>(x.size());
  return {at::tensor(x).view({n, 1}), at::tensor(y).view({n, 1}), 1};
}

struct SeenHooks : Callback {
  std::vector<std::string> events;
  std::vector<double> outputs, gradients, weights;
  std::function<void(const StepView&)> look;

  void note(const char* name, const StepView& view) {
    events.push_back(std::string(name) + " " + std::to_string(view.step) +
                     (view.ends_step ? " last" : ""));
  }
  void before_forward(const StepView& view) override {
    note("forward", view);
    EXPECT_FALSE(view.loss.defined());
  }
  void after_forward(const StepView& view, const at::Tensor& output) override {
    note("output", view);
    EXPECT_TRUE(output.requires_grad());
    outputs.push_back(output.detach().sum().item<double>());
  }
  void after_backward(const StepView& view) override {
    note("backward", view);
    const at::Tensor weight = view.module.parameters()[0];
    gradients.push_back(weight.grad().item<double>());
    weights.push_back(weight.item<double>());
    if (look) look(view);
  }
  void after_update(const StepView& view) override {
    note("update", view);
    weights.push_back(view.module.parameters()[0].item<double>());
  }
  void on_step(const StepMetrics& step, int64_t) override {
    events.push_back("read " + std::to_string(step.step));
  }
};

TEST(Hooks, AreCalledAroundEachBatchAndStep) {
  const OneWeightJob job;
  Trainer trainer = job.trainer({.accumulate = 2, .read_every = 2});
  const auto seen = std::make_shared<SeenHooks>();
  trainer.add(seen);
  trainer.fit(single_rows({1, 1, 1}, {0, 0, 0}));
  EXPECT_EQ(seen->events,
            (std::vector<std::string>{"forward 1", "output 1", "backward 1", "forward 1 last",
                                      "output 1 last", "backward 1 last", "update 1 last",
                                      "forward 2 last", "output 2 last", "backward 2 last",
                                      "update 2 last", "read 1", "read 2"}));
}

TEST(Hooks, SeeScaledGradientsBeforeTheUpdateAndNewWeightsAfterIt) {
  const OneWeightJob job(2);
  Trainer trainer = job.trainer({.loss_scale = {LossScale::Kind::fixed, 64}, .clip_norm = 1e6});
  const auto seen = std::make_shared<SeenHooks>();
  seen->look = [](const StepView& view) {
    EXPECT_EQ(view.loss.item<double>(), 36);  // (2 × 3)^2
    EXPECT_EQ(view.input("input").item<double>(), 3);
    EXPECT_EQ(view.scaler.get_scale(), 64);
  };
  trainer.add(seen);
  trainer.fit(single_rows({3}, {0}));
  EXPECT_EQ(seen->outputs, (std::vector<double>{6}));                 // 2 × 3
  EXPECT_EQ(seen->gradients, (std::vector<double>{64 * 36}));         // 64 × 2 × 6 × 3
  EXPECT_EQ(seen->weights, (std::vector<double>{2, 2 - 0.25 * 36}));  // lr × gradient
}

TEST(Hooks, RepeatTakesTheSameBatchOnceMore) {
  const OneWeightJob job(2);
  Trainer trainer = job.trainer(
      {.precision = parse_precision("fp16"), .loss_scale = {LossScale::Kind::fixed, 1024}});
  const auto seen = std::make_shared<SeenHooks>();
  seen->look = [&](const StepView& view) {
    const at::Tensor& gradient = job.model->weight.mutable_grad();
    const auto repeated = [&](const RepeatOptions& how) {
      gradient.zero_();
      EXPECT_EQ(view.repeat(how).item<double>(), 36);
      return gradient.item<double>();
    };
    EXPECT_EQ(repeated({}), 1024 * 36);
    EXPECT_EQ(repeated({.scaler = false}), 36);
    EXPECT_EQ(repeated({.autocast = false, .scaler = false}), 36);
    std::vector<double> losses;
    const auto keep = [&](const at::Tensor& loss) { losses.push_back(loss.item<double>()); };
    EXPECT_EQ(repeated({.autocast = false, .before_backward = keep}), 1024 * 36);
    EXPECT_EQ(losses, (std::vector<double>{1024 * 36}));
    EXPECT_TRUE(view.scaler.is_enabled());
    EXPECT_TRUE(view.precision.is_mixed());
  };
  trainer.add(seen);
  trainer.fit(single_rows({3}, {0}));
}

// 2.0005 is no fp16 number: 2 is the nearest, and (2 × 1)^2 = 4.
TEST(Hooks, RepeatWithoutAutocastComputesInFp32) {
  const OneWeightJob job(2.0005);
  Trainer trainer = job.trainer({.precision = parse_precision("fp16")});
  const auto seen = std::make_shared<SeenHooks>();
  seen->look = [&](const StepView& view) {
    EXPECT_EQ(view.repeat({}).item<double>(), 4);
    EXPECT_NEAR(view.repeat({.autocast = false}).item<double>(), 2.0005 * 2.0005, 1e-6);
    EXPECT_EQ(view.repeat({}).item<double>(), 4);
  };
  trainer.add(seen);
  trainer.fit(single_rows({1}, {0}));
  EXPECT_EQ(seen->gradients.size(), 1u);
}

TEST(GradNorm, IsThatOfTheUnscaledGradientsBeforeClipping) {
  const OneWeightJob job(2);
  Trainer trainer = job.trainer({.loss_scale = {LossScale::Kind::fixed, 64}, .clip_norm = 1});
  const History history = trainer.fit(single_rows({3, 0}, {0, 0}));
  ASSERT_EQ(history.steps.size(), 2u);
  EXPECT_NEAR(history.steps[0].grad_norm.value(), 36, 1e-5);
  EXPECT_EQ(history.steps[1].grad_norm, 0);
}

TEST(GradNorm, IsOfAllOptimizersTogether) {
  torch::nn::Linear model(1, 1);  // gradients: 2 (w x + b) x and 2 (w x + b)
  {
    const at::NoGradGuard no_grad;
    model->weight.fill_(1);
    model->bias.fill_(0);
  }
  const auto one = [](const at::Tensor& p) {
    return std::make_shared<optim::SGD>(std::vector<at::Tensor>{p}, optim::SGDOptions(0));
  };
  TrainerOptions options;
  options.loss = Loss::mse;
  options.optimizers = {one(model->weight), one(model->bias)};
  const History history = Trainer(network(model), options).fit(single_rows({2}, {0}));
  EXPECT_NEAR(history.steps[0].grad_norm.value(), std::hypot(8, 4), 1e-5);
}

TEST(GradNorm, IsMissingWhereNobodyComputesIt) {
  const OneWeightJob job;
  TrainerOptions options;
  options.loss = Loss::mse;
  options.optimizers = {std::make_shared<torch::optim::SGD>(job.model->parameters(), 0.1)};
  const History history = Trainer(network(job.model), options).fit(single_rows({3}, {0}));
  EXPECT_FALSE(history.steps[0].grad_norm);
}

TEST(GradNorm, IsNotFiniteInASkippedStep) {
  const OneWeightJob job;
  const float inf = std::numeric_limits<float>::infinity();
  Trainer trainer = job.trainer({.loss_scale = {LossScale::Kind::fixed, 64}});
  const History history = trainer.fit(single_rows({inf, 3}, {0, 0}));
  EXPECT_TRUE(history.steps[0].skipped);
  ASSERT_TRUE(history.steps[0].grad_norm);
  EXPECT_FALSE(std::isfinite(*history.steps[0].grad_norm));
  EXPECT_NEAR(history.steps[1].grad_norm.value(), 36, 1e-5);
}

TEST(GradNorm, StandsInTheColumnsOfACheckpoint) {
  History history;
  history.steps = {{.step = 1, .grad_norm = 2.5},
                   {.step = 2},
                   {.step = 3, .grad_norm = std::numeric_limits<double>::quiet_NaN()}};
  checkpoint::NamedTensors columns;
  write_columns(history, columns);
  History read;
  read_columns(columns, read);
  EXPECT_EQ(read.steps[0].grad_norm, 2.5);
  EXPECT_FALSE(read.steps[1].grad_norm);
  EXPECT_TRUE(std::isnan(read.steps[2].grad_norm.value()));
  columns.erase("history/steps.grad_norm");  // as an older version wrote it
  read_columns(columns, read);
  EXPECT_FALSE(read.steps[0].grad_norm);
}

}  // namespace
}  // namespace demi::train
