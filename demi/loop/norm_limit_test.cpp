// Optimizers of one loop step are skipped together for the norm of all their gradients.
#include <gtest/gtest.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/sgd.h>
#include <torch/types.h>
#include <torch/utils.h>

#include <cmath>
#include <memory>
#include <vector>

#include "demi/loop/observer.h"
#include "demi/loop/step.h"
#include "demi/optim/sgd.h"
#include "demi/scaler/grad_scaler.h"

namespace demi::loop {
namespace {

struct Models {
  torch::nn::Linear g{torch::nn::LinearOptions(1, 1).bias(false)};
  torch::nn::Linear d{torch::nn::LinearOptions(1, 1).bias(false)};
  torch::nn::Linear f{torch::nn::LinearOptions(1, 1).bias(false)};
};

// Gradients of 3, 4 and `third`: together 13 with a third of 12.
std::vector<StepResult> finish(Step& step, Models& m, double third, double nan = 1) {
  const at::Tensor one = torch::ones({1, 1});
  step.batch(
      [&] {
        return m.g->forward(one) * 3 + m.d->forward(one) * 4 * nan + m.f->forward(one) * third;
      },
      [](const at::Tensor& out) { return out.sum(); });
  return step.finish();
}

TEST(NormLimit, OfOneOptimizerHoldsAllOfTheStepBack) {
  for (const bool scaled : {true, false})
    for (const double clip : {0.0, 1.0}) {
      SCOPED_TRACE(::testing::Message() << scaled << ' ' << clip);
      Models m;
      optim::SGD plain(m.g->parameters(), optim::SGDOptions(1));
      optim::SGD limited(m.d->parameters(), optim::SGDOptions(1),
                         {.skip_norm_above = optim::NormLimit{.bound = 12.9}});
      torch::optim::SGD foreign(m.f->parameters(), torch::optim::SGDOptions(1));
      GradScaler scaler({.init_scale = 64, .enabled = scaled, .record_grad_norm = true});
      Step step({.models = {{"g", m.g.ptr().get()}, {"d", m.d.ptr().get()}, {"f", m.f.ptr().get()}},
                 .optimizers = {&plain, &limited, &foreign},
                 .scaler = &scaler},
                {.clip_norm = clip});
      const auto value = [&] { return m.f->weight.item<float>(); };
      const float before = value();
      for (const StepResult& one : finish(step, m, 12)) EXPECT_EQ(one.reason(), SkipReason::kNorm);
      EXPECT_EQ(value(), before);
      EXPECT_EQ(scaler.get_growth_tracker(), 0);
      for (const StepResult& one : finish(step, m, 11)) EXPECT_FALSE(one.skipped());
      EXPECT_NEAR(value(), before - (clip > 0 ? 1 : 11), 2e-6);  // clipping divides by norm + 1e-6
      const auto results = finish(step, m, 11, NAN);
      EXPECT_EQ(results[1].reason(), SkipReason::kNonfinite);
      EXPECT_EQ(results[0].reason(), SkipReason::kNone) << "an Inf or NaN holds its own back";
    }
}

TEST(NormLimit, ATurnIsDecidedByItself) {
  Models m;
  optim::SGD plain(m.g->parameters(), optim::SGDOptions(1));
  optim::SGD limited(m.d->parameters(), optim::SGDOptions(1),
                     {.skip_norm_above = optim::NormLimit{.bound = 4.5}});
  Step step({.models = {{"g", m.g.ptr().get()}, {"d", m.d.ptr().get()}},
             .optimizers = {&plain, &limited}});
  const at::Tensor one = torch::ones({1, 1});
  const auto batch = [&] {
    step.batch([&] { return m.g->forward(one) * 3 + m.d->forward(one) * 4; },
               [](const at::Tensor& out) { return out.sum(); });
  };
  batch();
  EXPECT_FALSE(step.take(plain).skipped());
  EXPECT_FALSE(step.finish().back().skipped()) << "4 alone";
  batch();
  EXPECT_EQ(step.finish().back().reason(), SkipReason::kNorm) << "3 and 4 are 5";
}

struct Recorded final : StepObserver {
  std::vector<StepMetrics> steps;
  void on_step(const StepMetrics& step, int64_t) override { steps.push_back(step); }
};

// LibTorch's optimizer has no norm: none is known of all, as in a step that is taken. An Inf or NaN
// is one of all.
TEST(NormLimit, OfAnOptimizerWithoutANormNothingIsReported) {
  for (const bool scaled : {true, false}) {
    Models m;
    optim::SGD limited(m.d->parameters(), optim::SGDOptions(1),
                       {.skip_norm_above = optim::NormLimit{.bound = 12.9}});
    torch::optim::SGD foreign(m.f->parameters(), torch::optim::SGDOptions(1));
    GradScaler scaler({.init_scale = 64, .enabled = scaled});
    Step step({.models = {{"g", m.g.ptr().get()}, {"d", m.d.ptr().get()}, {"f", m.f.ptr().get()}},
               .optimizers = {&limited, &foreign},
               .scaler = &scaler},
              {.read_every = 1});
    const auto seen = std::make_shared<Recorded>();
    step.watch(seen);
    finish(step, m, 13);
    finish(step, m, 11);
    finish(step, m, 11, NAN);
    ASSERT_EQ(seen->steps.size(), 3U);
    EXPECT_TRUE(seen->steps[0].skipped_for_norm);
    EXPECT_FALSE(seen->steps[0].grad_norm.has_value()) << *seen->steps[0].grad_norm;
    EXPECT_FALSE(seen->steps[1].grad_norm.has_value());
    EXPECT_FALSE(seen->steps[2].skipped_for_norm);
  }
}

TEST(NormLimit, StatisticsGoBackWithTheStep) {
  torch::nn::BatchNorm1d norm(2);
  optim::SGD sgd(norm->parameters(), optim::SGDOptions(1),
                 {.skip_norm_above = optim::NormLimit{.bound = 1e-3}});
  Step step({.models = {norm.ptr().get()}, .optimizers = {&sgd}}, {.guard_statistics = true});
  step.batch(
      [&] {
        return norm->forward(torch::randn({8, 2}));
      },
      [](const at::Tensor& out) { return (out.square() + out).sum(); });
  EXPECT_EQ(step.finish().front().reason(), SkipReason::kNorm);
  EXPECT_EQ(norm->running_mean.abs().sum().item<float>(), 0);
  EXPECT_EQ(norm->num_batches_tracked.item<int64_t>(), 0);
}

}  // namespace
}  // namespace demi::loop
