#include "demi/optim/batch_norm_guard.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <limits>

#include "demi/optim/step_result_testing.h"

namespace demi {
namespace {

using optim::testing::kSkipped;
using optim::testing::kTaken;
using optim::testing::on_device;

TEST(BatchNormGuard, ADevicesFlagIsNotRead) {
  torch::nn::BatchNorm1d model(2);
  BatchNormGuard guard(*model);
  for (const float skipped : {1.F, 0.F}) {
    model->forward(torch::ones({4, 2}));
    guard.restore_if_skipped(on_device(skipped));
    EXPECT_EQ(model->num_batches_tracked.item<int64_t>(), skipped != 0 ? 0 : 1);
    EXPECT_EQ(model->running_mean[0].item<float>() == 0, skipped != 0);
  }
}

TEST(BatchNormGuard, GivesTheStatisticsOfASkippedStepBack) {
  torch::nn::BatchNorm1d model(2);
  BatchNormGuard guard(*model);
  model->forward(torch::randn({4, 2}));
  guard.restore_if_skipped(kTaken);
  EXPECT_EQ(model->num_batches_tracked.item<int64_t>(), 1);
  guard.remember();
  const at::Tensor mean = model->running_mean.clone(), variance = model->running_var.clone();
  for (const auto& skipped : {kSkipped, on_device(1)}) {
    model->forward(torch::full({4, 2}, std::numeric_limits<float>::infinity()));
    guard.restore_if_skipped(skipped);
    EXPECT_TRUE(at::equal(model->running_mean, mean));
    EXPECT_TRUE(at::equal(model->running_var, variance));
    EXPECT_EQ(model->num_batches_tracked.item<int64_t>(), 1);
  }
  model->forward(torch::ones({4, 2}));
  guard.restore_if_skipped(on_device(0));
  EXPECT_EQ(model->num_batches_tracked.item<int64_t>(), 2);
}

TEST(BatchNormGuard, FollowsAModuleThatMovesToAWiderDtype) {
  torch::nn::BatchNorm1d norm(1);
  BatchNormGuard guard(*norm);
  norm->to(torch::kDouble);
  const double third = 1.0 / 3;
  norm->running_mean.fill_(third);
  guard.remember();
  norm->running_mean.fill_(5);
  guard.restore_if_skipped(StepResult(nullptr, StepResult::Numbers{.found_inf = 1}, {}));
  EXPECT_EQ(norm->running_mean.item<double>(), third);
}

}  // namespace
}  // namespace demi
