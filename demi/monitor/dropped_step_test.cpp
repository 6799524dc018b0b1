// OriginSearch and steps that Step::drop() ends.
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <limits>
#include <memory>
#include <vector>

#include "demi/loop/step.h"
#include "demi/monitor/origin_search.h"
#include "demi/optim/sgd.h"

namespace demi::monitor {
namespace {

using Place = Origin::Place;

struct DroppedStep : ::testing::Test {
  torch::nn::Linear linear{4, 4};
  torch::nn::BatchNorm1d norm{4};
  torch::nn::Sequential model{linear, norm};
  optim::SGD sgd{model->parameters(), optim::SGDOptions(1e-3)};
  loop::Step step{loop::Job{.models = {model.get()}, .optimizers = {&sgd}}, {.accumulate = 2}};
  std::vector<Origin> reported;

  DroppedStep() {
    step.watch(std::make_shared<OriginSearch>([this](const Origin& o) { reported.push_back(o); }));
  }
  static at::Tensor input(double first) {
    at::Tensor x = at::arange(12, at::kFloat).view({3, 4});
    x[0][0] = first;
    return x;
  }
  // The loss is finite, but for a negative number: its logarithm is NaN.
  void batch(const at::Tensor& x, double number = 1) {
    step.batch([&] { return model->forward(x); },
               [&](const at::Tensor& out) {
                 return out.square().mean() + (out.detach() * 0 + number).log().sum();
               },
               {.inputs = {{"input", x}}});
  }
};

TEST_F(DroppedStep, DoesNotHideTheFaultOfTheNext) {
  batch(input(std::numeric_limits<double>::quiet_NaN()));
  ASSERT_EQ(reported.size(), 1U);
  EXPECT_EQ(reported[0].place, Place::data);
  step.drop();
  norm->reset_running_stats();
  batch(input(1), -1);
  ASSERT_EQ(reported.size(), 2U);
  EXPECT_EQ(reported[1].place, Place::forward) << to_string(reported[1]);
  EXPECT_EQ(reported[1].op, "aten::log");
}

// No op of training reads it.
TEST_F(DroppedStep, IsFollowedByALookAtTheState) {
  batch(input(1));
  step.drop();
  norm->running_var[3] = std::numeric_limits<double>::quiet_NaN();
  batch(input(1));
  ASSERT_EQ(reported.size(), 1U);
  EXPECT_EQ(reported[0].place, Place::state) << to_string(reported[0]);
  EXPECT_EQ(reported[0].name, "buffer 1.running_var");
}

// The running statistics of the batch of NaN stay, and that batch was reported.
TEST_F(DroppedStep, LeavesWhatWasReported) {
  batch(input(std::numeric_limits<double>::quiet_NaN()));
  step.drop();
  batch(input(1));
  EXPECT_EQ(reported.size(), 1U) << to_string(reported.back());
}

}  // namespace
}  // namespace demi::monitor
