// A run in fp16 that overflows: what it says, and what mends it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <torch/types.h>
#include <torch/utils.h>

#include <filesystem>
#include <memory>
#include <string>

#include "demi/autocast/op_policy.h"
#include "demi/data/tensor_loader.h"
#include "lab/recipes/observer_testing.h"
#include "lab/recipes/run.h"

namespace demi::recipes {
namespace {

namespace fs = std::filesystem;

// fp16 gives Inf from 65,520 on. A weight of 300 and an input of 300 give 90,000, also in the test
// of the shipped weights.
class Overflow : public ::testing::Test {
 protected:
  Overflow() {
    config_.epochs = 1;
    config_.batch_size = 4;
    config_.optimizer = "sgd";
    config_.lr = 0;
    config_.loss = "mse";
    const at::Tensor x = torch::full({8, 2}, 300.F), y = torch::zeros({8, 1});
    workload_.train = workload_.test =
        std::make_shared<data::TensorLoader>(x, y, data::OrderOptions{.batch_size = 4});
    workload_.make_network = [](uint64_t) {
      torch::nn::Sequential model(torch::nn::Linear(2, 2), torch::nn::Linear(2, 1));
      const torch::NoGradGuard no_grad;
      for (auto& parameter : model->parameters()) parameter.fill_(1.0 / 1024);
      model[0]->as<torch::nn::Linear>()->weight.fill_(300);
      return train::network(model);
    };
    fs::create_directories(folder_);
  }
  ~Overflow() override { fs::remove_all(folder_); }
  RunResult trained(const std::string& spec) {
    return run(settings::resolve(config_, settings::parse_run(spec)), workload_,
               {.folder = folder_});
  }

  const fs::path folder_ = fs::temp_directory_path() / "demi_overflow_test";
  settings::Config config_;
  workload::Workload workload_;
};

TEST_F(Overflow, IsMendedByAPartInFp32OrByAPolicy) {
  EXPECT_TRUE(trained("fp16").history.failed);
  const RunResult exact = trained("fp32");
  EXPECT_FALSE(exact.history.failed);
  // Both layers, since the second is given what the first has made.
  const RunResult parts = trained("fp16:fp32-part=0:fp32-part=1");
  EXPECT_FALSE(parts.history.failed);
  EXPECT_EQ(parts.history.steps[0].loss, exact.history.steps[0].loss);
  EXPECT_NEAR(parts.test_loss.value(), exact.test_loss.value(), 1e-3 * *exact.test_loss);
  const std::string policy = (folder_ / "ops").string();
  OpPolicy().set("addmm", OpCategory::fp32).set("linear", OpCategory::fp32).to_file(policy);
  const RunResult ops = trained("fp16:op-policy=" + policy);
  EXPECT_FALSE(ops.history.failed);
  EXPECT_EQ(ops.history.steps[0].loss, exact.history.steps[0].loss);
  OpPolicy().keep_part_in_fp32("0").keep_part_in_fp32("1").to_file(policy);
  EXPECT_EQ(trained("fp16:op-policy=" + policy).history.steps[0].loss, exact.history.steps[0].loss);
  const RunResult plain = trained("fp16:no-autocast");
  EXPECT_EQ(plain.history.steps[0].loss, exact.history.steps[0].loss);
  ASSERT_TRUE(plain.history.failed) << "what one would ship runs in a region";
  EXPECT_THAT(*plain.history.failed, ::testing::HasSubstr("as shipped"));
}

TEST_F(Overflow, IsSaidOnceAndOfTraining) {
  config_.epochs = 3;
  const RunResult result = trained("fp16");
  ASSERT_TRUE(result.history.failed);
  // The epoch in which a run failed is no whole one.
  const auto& epochs = result.history.epochs;
  double whole = 0;
  for (std::size_t i = 0; i + 1 < epochs.size(); ++i) whole += epochs[i].seconds;
  const auto count = static_cast<double>(epochs.size()) - 1;
  ASSERT_GT(count, 0);
  EXPECT_DOUBLE_EQ(result.seconds_per_epoch, whole / count);
  EXPECT_THAT(*result.history.failed, ::testing::Not(::testing::HasSubstr("as shipped")));
  EXPECT_EQ(result.remark, "") << "the scaler's own business";
  EXPECT_GT(result.skipped_steps, 0);
}

TEST_F(Overflow, ItsOriginIsToldAndKept) {
  config_.detect_anomaly = true;
  testing::Watch watch;
  const RunResult result = run(settings::resolve(config_, settings::parse_run("fp16")), workload_,
                               {.folder = folder_, .observer = &watch});
  EXPECT_FALSE(result.origins.empty());
  EXPECT_EQ(watch.origins, result.origins.size());
}

}  // namespace
}  // namespace demi::recipes
