// A Step whose model gets another parameter by optim::replace_parameter.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <limits>
#include <memory>
#include <string>

#include "demi/core/error.h"
#include "demi/loop/step.h"
#include "demi/optim/replace_parameter.h"
#include "demi/optim/sgd.h"

namespace demi::loop {
namespace {

using ::testing::HasSubstr;

// Its only parameter grows.
struct Growing : torch::nn::Module {
  at::Tensor rows = register_parameter("rows", torch::ones({3, 4}));
  torch::nn::BatchNorm1d norm = register_module(
      "norm", torch::nn::BatchNorm1d(torch::nn::BatchNorm1dOptions(4).affine(false)));

  void set(const at::Tensor& now) { parameters_["rows"] = rows = now; }
  at::Tensor forward(const at::Tensor& x) { return norm->forward(x).matmul(rows.t()); }
};

struct GrowingRun {
  Growing model;
  optim::SGD sgd{model.parameters(), optim::SGDOptions(0.5)};
  Step step{{.models = {&model}, .optimizers = {&sgd}}, {.guard_statistics = true}};

  void batch(float factor = 1) {
    const at::Tensor x = torch::arange(20, at::kFloat).view({5, 4}).sin();
    step.batch([&] { return model.forward(x); },
               [&](const at::Tensor& out) { return out.square().mean() * factor; });
  }
  void replace(const at::Tensor& now, const at::Tensor& rows, bool registers = true) {
    const at::Tensor old = model.rows;
    if (registers) model.set(now);
    optim::replace_parameter(sgd, old, now, rows);
  }
};

std::string said(const std::function<void()>& call) {
  try {
    call();
  } catch (const UsageError& error) {
    return error.what();
  }
  return "no UsageError";
}

// The statistics go back after a step that the model's optimizers have skipped: those that hold its
// parameters of now.
TEST(StepWithReplacedParameter, KnowsTheNewOneAsTheModels) {
  GrowingRun run;
  run.batch();
  run.step.finish();
  run.replace(torch::full({5, 4}, 0.5F).requires_grad_(), torch::tensor({0L, 1L, 2L, -1L, -1L}));
  const at::Tensor before = run.model.norm->running_mean.clone(), rows = run.model.rows.clone();
  run.batch(std::numeric_limits<float>::infinity());
  EXPECT_FALSE(at::equal(run.model.norm->running_mean, before));
  EXPECT_TRUE(run.step.finish().front().skipped());
  EXPECT_TRUE(at::equal(run.model.norm->running_mean, before));
  EXPECT_TRUE(at::equal(run.model.rows, rows));
  run.batch();
  EXPECT_FALSE(run.step.finish().front().skipped());
  EXPECT_FALSE(at::equal(run.model.rows, rows));
}

TEST(StepWithReplacedParameter, RefusesItWithinAStep) {
  GrowingRun run;
  run.batch();
  const at::Tensor now = torch::ones({1, 4}).requires_grad_(), rows = torch::tensor({1L});
  const at::Tensor old = run.model.rows;
  EXPECT_THAT(said([&] { run.replace(now, rows); }), HasSubstr("within a step"));
  EXPECT_TRUE(run.sgd.param_groups()[0].params()[0].is_same(old));
  run.model.set(old);
  run.step.finish();
  run.replace(now, rows);
  EXPECT_TRUE(run.sgd.param_groups()[0].params()[0].is_same(now));
}

// An optimizer that goes on with the old one is none of the model's: its step keeps no statistics
// of a batch that the model's optimizer has skipped.
TEST(StepWithReplacedParameter, TheOldOneIsNotTheModelsAnyMore) {
  Growing model;
  const at::Tensor extra = torch::ones({2}).requires_grad_(), old = model.rows;
  optim::SGD sgd({model.rows}, optim::SGDOptions(0.5)), other({extra}, optim::SGDOptions(0.5));
  Step step({.models = {&model}, .optimizers = {&sgd, &other}, .more = {extra}},
            {.guard_statistics = true});
  model.set(torch::ones({1, 4}).requires_grad_());
  optim::replace_parameter(sgd, old, model.rows, torch::tensor({1L}));
  other.add_param_group({{old}});
  const at::Tensor before = model.norm->running_mean.clone();
  step.batch(
      [&] {
        return model.forward(torch::arange(20, at::kFloat).view({5, 4}).sin());
      },
      [&](const at::Tensor& out) {
        const float infinity = std::numeric_limits<float>::infinity();
        return out.square().mean() * infinity + extra.sum() + old.sum();
      });
  EXPECT_FALSE(at::equal(model.norm->running_mean, before));
  const auto results = step.finish();
  ASSERT_EQ(results.size(), 2U);
  EXPECT_TRUE(results[0].skipped());
  EXPECT_FALSE(results[1].skipped());
  EXPECT_TRUE(at::equal(model.norm->running_mean, before));
}

// A parameter that only an optimizer and the loss have, as Job::more says.
TEST(StepWithReplacedParameter, KnowsThoseBesideTheModelToo) {
  Growing model;
  const at::Tensor extra = torch::ones({2, 4}).requires_grad_(),
                   now = torch::ones({3, 4}).requires_grad_();
  optim::SGD sgd({model.rows, extra}, optim::SGDOptions(0.5));
  Step step({.models = {&model}, .optimizers = {&sgd}, .more = {extra}}, {});
  const at::Tensor x = torch::ones({5, 4});
  const auto batch = [&](const at::Tensor& of) {
    step.batch([&] { return model.forward(x); },
               [&](const at::Tensor& out) { return out.sum() + of.sum(); });
  };
  const auto replace = [&] {
    optim::replace_parameter(sgd, extra, now, torch::tensor({1L, 0L, -1L}));
  };
  batch(extra);
  EXPECT_THAT(said(replace), HasSubstr("within a step"));
  step.finish();
  replace();
  batch(now);
  step.finish();
  EXPECT_TRUE(at::equal(now, torch::full({3, 4}, 0.5F)));
}

TEST(StepWithReplacedParameter, RefusesOneThatTheModelDoesNotHave) {
  GrowingRun run;
  const at::Tensor now = torch::ones({1, 4}).requires_grad_(), rows = torch::tensor({1L});
  EXPECT_THAT(said([&] { run.replace(now, rows, /*registers=*/false); }),
              HasSubstr("register it first"));
  EXPECT_TRUE(run.sgd.param_groups()[0].params()[0].is_same(run.model.rows));
}

// An observer may replace after the update.
TEST(StepWithReplacedParameter, AfterTheUpdateIsBetweenTwoSteps) {
  GrowingRun run;
  struct Grows : StepObserver {
    explicit Grows(GrowingRun& of) : run(of) {}
    void after_update(const StepView&) override {
      const int64_t count = run.model.rows.size(0);
      run.replace(run.model.rows.detach().repeat({2, 1}).requires_grad_(),
                  torch::arange(count).repeat({2}));
    }
    GrowingRun& run;
  };
  run.step.watch(std::make_shared<Grows>(run));
  for (int i = 0; i < 3; ++i) {
    run.batch();
    run.step.finish();
  }
  EXPECT_EQ(run.model.rows.size(0), 24);
  EXPECT_EQ(run.sgd.steps_taken(), 3);
}

}  // namespace
}  // namespace demi::loop
