// The loss scale on several ranks: the same in every step, whatever moves it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <memory>
#include <vector>

#include "demi/distributed/distributed_data_parallel.h"
#include "demi/distributed/process_group.h"
#include "demi/distributed/ranks_testing.h"
#include "demi/optim/sgd.h"
#include "demi/scaler/grad_scaler.h"

namespace demi::distributed {
namespace {

using demi::testing::on_ranks;
using ::testing::Each;
using ::testing::IsEmpty;

constexpr int kScaledRanks = 3;

// The records of one rank.
struct ScaleRun {
  std::vector<float> scales;  // in each step
  std::vector<bool> skipped;
  at::Tensor weight;
};

// A rank's gradient of each step, of a weight of one element. 1e6 x any scale overflows fp16.
using GradientsByRank = std::vector<std::vector<double>>;

// Trains one fp16 weight whose gradient is the given number: the loss is their product.
std::vector<ScaleRun> run_scaled(const GradScalerOptions& options, const GradientsByRank& gradients,
                                 bool with_ours) {
  std::vector<ScaleRun> runs(kScaledRanks);
  const auto errors = on_ranks(kScaledRanks, [&](ProcessGroup& group) {
    const auto rank = static_cast<std::size_t>(group.rank());
    torch::nn::Linear model(torch::nn::LinearOptions(1, 1).bias(false));
    model->to(torch::kHalf);
    {
      const torch::NoGradGuard no_grad;
      model->weight.fill_(1);
    }
    const DistributedDataParallel parallel(*model, group);
    std::unique_ptr<torch::optim::Optimizer> optimizer;
    if (with_ours)
      optimizer = std::make_unique<optim::SGD>(model->parameters(), 0.0);
    else
      optimizer = std::make_unique<torch::optim::SGD>(model->parameters(), 0.0);
    GradScaler scaler(options);
    for (const double gradient : gradients[rank]) {
      runs[rank].scales.push_back(scaler.get_scale());
      optimizer->zero_grad();
      scaler.scale((model->weight.to(torch::kFloat) * gradient).sum()).backward();
      runs[rank].skipped.push_back(scaler.step(*optimizer).skipped());
      scaler.update();
    }
    runs[rank].scales.push_back(scaler.get_scale());
    runs[rank].weight = model->weight.detach().clone();
  });
  EXPECT_THAT(errors, Each(IsEmpty()));
  return runs;
}

void expect_on_all(const std::vector<ScaleRun>& runs, const std::vector<float>& scales,
                   const std::vector<bool>& skipped) {
  for (const ScaleRun& run : runs) {
    EXPECT_EQ(run.scales, scales);
    EXPECT_EQ(run.skipped, skipped);
    EXPECT_TRUE(torch::equal(run.weight, runs[0].weight));
  }
}

class ScaleOnRanks : public ::testing::TestWithParam<bool> {};
INSTANTIATE_TEST_SUITE_P(OfBothKinds, ScaleOnRanks, ::testing::Bool());

// The scale is the greatest power of two that keeps the averaged gradient below 1,024. The averages
// of the three steps are (6 + 0 + 0) / 3 = 2, then (0 + 0 + 3) / 3 = 1, then 6. So 256, since 2 x
// 512 is not below 1,024, then 512, then 128. All of them are exact in fp16.
TEST_P(ScaleOnRanks, AmaxIsThatOfTheAverage) {
  GradScalerOptions options;
  options.mode = ScaleMode::kAmax;
  options.init_scale = 16;
  options.amax_window = 1;
  options.amax_limit = 1024;
  const GradientsByRank gradients{{6, 0, 6}, {0, 0, 6}, {0, 3, 6}};
  expect_on_all(run_scaled(options, gradients, GetParam()), {16, 256, 512, 128},
                {false, false, false});
}

// An overflow of one rank counts as 65,504 / 16 = 4,094 on all: 1,024 / 4,094 is above 1/4, so the
// scale becomes 1/4. It stays there as long as the window holds that step.
TEST_P(ScaleOnRanks, AmaxOverflowOnOneRank) {
  GradScalerOptions options;
  options.mode = ScaleMode::kAmax;
  options.init_scale = 16;
  options.amax_window = 2;
  options.amax_limit = 1024;
  const GradientsByRank gradients{{3, 3, 3}, {1e6, 3, 3}, {3, 3, 3}};
  expect_on_all(run_scaled(options, gradients, GetParam()), {16, 0.25, 0.25, 256},
                {true, false, false});
}

TEST_P(ScaleOnRanks, StaticStays) {
  GradScalerOptions options;
  options.mode = ScaleMode::kStatic;
  options.init_scale = 16;
  const GradientsByRank gradients{{3, 3, 3}, {3, 3, 3}, {3, 1e6, 3}};
  expect_on_all(run_scaled(options, gradients, GetParam()), {16, 16, 16, 16}, {false, true, false});
}

// Two overflows are forgiven one time: the first on rank 0, the second on rank 2. Two clean steps
// in a row double the scale.
TEST_P(ScaleOnRanks, DynamicWithHysteresis) {
  GradScalerOptions options;
  options.init_scale = 16;
  options.growth_interval = 2;
  options.hysteresis = 2;
  const GradientsByRank gradients{{1e6, 3, 3, 3}, {3, 3, 3, 3}, {3, 1e6, 3, 3}};
  expect_on_all(run_scaled(options, gradients, GetParam()), {16, 16, 8, 8, 16},
                {true, true, false, false});
}

}  // namespace
}  // namespace demi::distributed
