#include "demi/loop/observer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <memory>
#include <stdexcept>
#include <vector>

#include "demi/loop/step.h"
#include "demi/optim/sgd.h"

namespace demi::loop {
namespace {

using ::testing::ElementsAre;

struct SeenBegins : StepObserver {
  std::vector<bool> begins;
  void before_forward(const StepView& view) override { begins.push_back(view.begins_step); }
  void after_update(const StepView& view) override { EXPECT_FALSE(view.begins_step); }
};

TEST(StepView, BeginsAStepWithItsFirstBatchAlsoBehindADroppedOne) {
  torch::nn::Linear model(2, 1);
  optim::SGD sgd(model->parameters(), optim::SGDOptions(0.1));
  Step step(Job{.models = {model.get()}, .optimizers = {&sgd}}, {.accumulate = 3});
  const auto seen = std::make_shared<SeenBegins>();
  step.watch(seen);
  const auto batch = [&](bool fails = false) {
    step.batch(
        [&] {
          return model->forward(at::ones({2, 2}));
        },
        [&](const at::Tensor& out) {
          if (fails) throw std::runtime_error("a loss that fails");
          return out.mean();
        });
  };
  for (int n = 0; n < 3; ++n) batch();
  step.finish();
  batch();
  batch();
  step.drop();
  batch();
  EXPECT_THROW(batch(/*fails=*/true), std::runtime_error);
  batch();
  step.drop();
  step.pass();  // other ranks alone have the first batch
  batch();
  step.drop();
  step.reopen({}, 1);  // it has a batch already
  batch();
  EXPECT_THAT(seen->begins,
              ElementsAre(true, false, false, true, false, true, false, true, true, false));
}

}  // namespace
}  // namespace demi::loop
