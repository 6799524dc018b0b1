// Runs of several ranks, which are threads of this process.
#include <ATen/ops/arange.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <torch/types.h>

#include <cmath>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "demi/backends/backends.h"
#include "demi/checkpoint/checkpoint.h"
#include "demi/data/tensor_loader.h"
#include "demi/distributed/ranks_testing.h"
#include "lab/recipes/job.h"
#include "lab/recipes/run.h"
#include "lab/settings/recipe.h"

namespace demi::recipes {
namespace {

namespace fs = std::filesystem;

using demi::testing::on_ranks;
using distributed::ProcessGroup;
using ::testing::Each;
using ::testing::IsEmpty;

// LibTorch's settings are the process's: what the ranks set while they meet is put back here.
class RanksOfOneProcess : public ::testing::Test {
 protected:
  RanksOfOneProcess() {
    std::string pattern = (fs::temp_directory_path() / "demi-run-ranks-XXXXXX").string();
    folder_ = mkdtemp(pattern.data());
    config_.epochs = 2;
    config_.batch_size = 2;
    config_.ranks = 2;
    config_.optimizer = "sgd";
    config_.lr = 0;
    config_.loss = "mse";
    config_.checkpoint_every = "0";
  }
  ~RanksOfOneProcess() override { fs::remove_all(folder_); }

  // A first layer whose output, 300 * 300 and as much again, is beyond fp16; eight rows alike.
  static workload::Workload workload(int rank, int ranks) {
    workload::Workload result;
    data::OrderOptions order{.batch_size = 2, .rank = rank, .world_size = ranks};
    const at::Tensor x = at::full({8, 2}, 300, torch::kFloat), y = at::zeros({8, 1});
    result.train = std::make_shared<data::TensorLoader>(x, y, order);
    order.keep_all = true;
    result.test = std::make_shared<data::TensorLoader>(x, y, order);
    result.make_network = [](uint64_t) {
      torch::nn::Sequential model(torch::nn::Linear(2, 2), torch::nn::Linear(2, 1));
      const torch::NoGradGuard no_grad;
      for (auto& parameter : model->parameters()) parameter.fill_(1.0 / 1024);
      model[0]->as<torch::nn::Linear>()->weight.fill_(300);
      return train::network(model);
    };
    return result;
  }

  // As the program gives them: files are those of rank 0. All know the folder of checkpoints if the
  // run goes on.
  JobOptions options(ProcessGroup& group, const std::string& checkpoints = "kept") const {
    JobOptions options{.checkpoints = folder_ / checkpoints};
    if (group.rank() == 0) options.folder = folder_;
    options.group = {&group, [](ProcessGroup*) {}};
    return options;
  }

  static constexpr double kOutput = (2 * (2 * 300.0 * 300 + 1.0 / 1024) + 1) / 1024;

  // The results by rank.
  std::vector<RunResult> trained(const std::string& spec) const {
    std::vector<RunResult> results(2);
    const auto errors = on_ranks(2, [&](ProcessGroup& group) {
      results[static_cast<std::size_t>(group.rank())] =
          run(settings::resolve(config_, settings::parse_run(spec)), workload(group.rank(), 2),
              options(group));
    });
    EXPECT_THAT(errors, Each(IsEmpty()));
    return results;
  }

  fs::path folder_;
  settings::Config config_ = settings::find_recipe("mlp").config;

 private:
  BackendsGuard settings_{{.cuda_matmul_allow_tf32 = false, .cudnn_allow_tf32 = false}};
};

// One batch of the two ranks is the whole set, whose mean is 3.5; a rank's own half has another.
TEST_F(RanksOfOneProcess, ShareTheStatisticsOfBatchNormUnlessTold) {
  const auto running_mean = [&](bool synchronises) {
    config_.sync_batch_norm = synchronises;
    config_.batch_size = 4;
    config_.loss = "mse";
    const auto errors = on_ranks(2, [&](ProcessGroup& group) {
      workload::Workload rows = workload(group.rank(), 2);
      data::OrderOptions order{.batch_size = 4, .rank = group.rank(), .world_size = 2};
      rows.train = rows.test = std::make_shared<data::TensorLoader>(
          at::arange(8, at::kFloat).reshape({8, 1}), at::zeros({8, 1}), order);
      rows.make_network = [](uint64_t) {
        return train::network(
            torch::nn::Sequential(torch::nn::BatchNorm1d(1), torch::nn::Linear(1, 1)));
      };
      run(settings::resolve(config_, settings::parse_run("fp32")), rows,
          options(group, synchronises ? "together" : "apart"));
    });
    EXPECT_THAT(errors, Each(IsEmpty()));
    return checkpoint::load(folder_ / "model.safetensors").model.at("0.running_mean").item<float>();
  };
  const float mean_after_two_steps = 3.5F * (1 - 0.9F * 0.9F);
  EXPECT_NEAR(running_mean(true), mean_after_two_steps, 1e-5);
  EXPECT_GT(std::abs(running_mean(false) - mean_after_two_steps), 1e-3);
}

// The batches of rank 0 stand for all.
TEST_F(RanksOfOneProcess, TheFirstAloneIsAskedWhatIfAndMonitored) {
  config_.what_if = "fp16";
  config_.monitor = 1;
  const std::vector<RunResult> results = trained("fp32");
  ASSERT_TRUE(results[0].what_if);
  EXPECT_EQ(results[0].what_if->batches, 4) << "two an epoch";
  EXPECT_FALSE(results[1].what_if);
  EXPECT_EQ(results[0].health.size(), 4U);
  EXPECT_THAT(results[1].health, IsEmpty());
}

// Rank 0 may remove an earlier checkpoint while another rank looks at it.
TEST_F(RanksOfOneProcess, TheFirstAloneLooksAtCheckpoints) {
  std::vector<int64_t> bytes(2);
  const auto errors = on_ranks(2, [&](ProcessGroup& group) {
    const workload::Workload own = workload(group.rank(), 2);
    Job one(settings::resolve(config_, settings::parse_run("fp32")), own, options(group), 0);
    EXPECT_FALSE(one.advance(1000));
    const at::Tensor saved = at::zeros({1});
    group.all_reduce(saved, distributed::Reduction::kSum);  // by all: the checkpoint is there
    bytes[static_cast<std::size_t>(group.rank())] = one.finish().checkpoint_bytes;
  });
  EXPECT_THAT(errors, Each(IsEmpty()));
  EXPECT_GT(bytes[0], 0);
  EXPECT_EQ(bytes[1], 0);
}

// In fp16 the first layer gives Inf. The rows are alike, and the outputs FP32 sums of few terms.
TEST_F(RanksOfOneProcess, EachKeepsPartsInFp32AlsoInTheTestOfWhatIsShipped) {
  const std::vector<RunResult> results = trained("fp16:fp32-part=0:fp32-part=1");
  for (const RunResult& result : results) {
    EXPECT_FALSE(result.history.failed);
    EXPECT_NEAR(result.test_loss.value(), kOutput * kOutput, 1e-3 * kOutput * kOutput);
  }
}

// Weights, inputs and outputs are rounded to 8 bits.
TEST_F(RanksOfOneProcess, AllTestTheDtypeThatIsShipped) {
  for (const RunResult& result : trained("bf16-true"))
    EXPECT_NEAR(result.test_loss.value(), kOutput * kOutput, 8 * 0x1p-8 * kOutput * kOutput);
}

TEST_F(RanksOfOneProcess, TheFirstAloneKeepsWhatWasTrained) {
  const auto errors = on_ranks(2, [&](ProcessGroup& group) {
    const workload::Workload own = workload(group.rank(), 2);
    const JobOptions apart = options(group, std::to_string(group.rank()));
    Job one(settings::resolve(config_, settings::parse_run("fp32")), own, apart, 0);
    EXPECT_TRUE(one.advance(2));
    one.save_last();
  });
  EXPECT_THAT(errors, Each(IsEmpty()));
  EXPECT_EQ(checkpoint::load(folder_ / "0").text.at("demi.step"), "2");
  EXPECT_FALSE(fs::exists(folder_ / "1"));
}

// The other rank, which has no exception, sends no share of the optimizer's state.
TEST_F(RanksOfOneProcess, ThatShareTheStateKeepNothingAlone) {
  config_.optimizer = "adamw";
  config_.shard_optimizer = true;
  const auto errors = on_ranks(2, [&](ProcessGroup& group) {
    const workload::Workload own = workload(group.rank(), 2);
    Job one(settings::resolve(config_, settings::parse_run("fp32")), own, options(group), 0);
    EXPECT_TRUE(one.advance(2));
    if (group.rank() == 0) one.save_last();
    const at::Tensor sum = at::full({1}, 3, torch::kFloat);
    group.all_reduce(sum, distributed::Reduction::kSum);
    EXPECT_EQ(sum.item<float>(), 6) << "nothing was sent before it";
  });
  EXPECT_THAT(errors, Each(IsEmpty()));
  EXPECT_FALSE(fs::exists(folder_ / "kept" / "last"));
}

}  // namespace
}  // namespace demi::recipes
