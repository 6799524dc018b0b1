#include "lab/recipes/run.h"

#include <ATen/ops/linalg_solve.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <torch/types.h>
#include <torch/utils.h>

#include <filesystem>

#include "demi/autocast/op_policy.h"
#include "demi/checkpoint/checkpoint.h"
#include "demi/core/error.h"
#include "demi/data/tensor_loader.h"
#include "lab/recipes/compare.h"
#include "lab/recipes/plan.h"
#include "lab/recipes/recipe.h"

namespace demi::train {
namespace {

namespace fs = std::filesystem;

Config small_mlp() {
  Config config = find_recipe("mlp").config;
  for (const char* name : {"in", "out", "batches", "batch-size"}) set(config, name, "8", name);
  set(config, "epochs", "1", "epochs");
  return config;
}

TEST(Workload, ModelDataAndLossMustFit) {
  Config config = find_recipe("mlp").config;
  config.model = "resnet18";
  EXPECT_THROW(load_workload(config, c10::kCPU), UsageError);
  config.model = "resnet81";
  EXPECT_THROW(load_workload(config, c10::kCPU), UsageError);
  config = small_mlp();
  config.loss = "cross-entropy";
  EXPECT_THROW(load_workload(config, c10::kCPU), UsageError);
}

// What the issue of the workloads says of the models.
TEST(Workload, RecipesHaveThePublishedNumbersOfParameters) {
  const auto parameters = [](const char* recipe, const DataShape& shape) {
    int64_t count = 0;
    const Network network = make_network(find_recipe(recipe).config, shape, 0, c10::kCPU);
    for (const auto& p : network.module->parameters()) count += p.numel();
    return count;
  };
  const DataShape cifar{.channels = 3, .size = 32, .classes = 10};
  EXPECT_EQ(parameters("cifar10-cnn", cifar), 60362);
  EXPECT_EQ(parameters("cifar10-resnet18", cifar), 11173962);
  EXPECT_EQ(parameters("cifar10-resnet50", cifar), 23520842);
  EXPECT_EQ(parameters("imdb-lstm", {.classes = 2, .vocabulary = 100683}), 10435149);
}

TEST(Workload, SyntheticDataIsTheSameForEveryRun) {
  const Config config = small_mlp();
  const Workload a = load_workload(config, c10::kCPU), b = load_workload(config, c10::kCPU);
  EXPECT_TRUE(a.train->batch(0, 3).input.equal(b.train->batch(0, 3).input));
  EXPECT_EQ(a.train->examples(), 64);
  EXPECT_EQ(a.test, nullptr);
}

TEST(Run, KeepsTheModelAndTheStateAndSaysTheirSizes) {
  const Config config = small_mlp();
  const fs::path folder = fs::temp_directory_path() / "demi_run_test";
  fs::create_directories(folder);
  const Workload workload = load_workload(config, c10::kCPU);
  const RunResult result = run(config, parse_run("bf16"), workload, c10::kCPU,
                               {.folder = folder, .checkpoints = folder / "checkpoints"});
  EXPECT_EQ(result.history.steps.size(), 8u);
  EXPECT_EQ(result.model_bytes, static_cast<int64_t>(fs::file_size(folder / "model.safetensors")));
  int64_t bytes = 0;
  for (const auto& entry : fs::directory_iterator(checkpoint::find(folder)))
    bytes += static_cast<int64_t>(entry.file_size());
  EXPECT_EQ(result.checkpoint_bytes, bytes);
  EXPECT_EQ(result.parameters, 3 * (8 * 8 + 8));
  EXPECT_FALSE(result.test_accuracy) << "a regression has none";
  fs::remove_all(folder);
}

// y = x W / sqrt(in): of as many rows as features W can be had back, and the others follow it.
TEST(Workload, ALinearTargetIsAFunctionOfTheRows) {
  Config config = small_mlp();
  config.data = "synthetic-linear";
  config.out = 3;
  const Workload workload = load_workload(config, c10::kCPU);
  const data::Batch first = workload.train->batch(0, 0), other = workload.train->batch(0, 5);
  const at::Tensor weights =
      at::linalg_solve(first.input.to(c10::kDouble), first.target.to(c10::kDouble));
  EXPECT_EQ(first.input.sizes(), (std::vector<int64_t>{8, 8}));
  EXPECT_TRUE(at::allclose(other.input.to(c10::kDouble).matmul(weights),
                           other.target.to(c10::kDouble), 1e-3, 1e-3));
  config.in = 4096;
  const at::Tensor target = load_workload(config, c10::kCPU).train->batch(0, 0).target;
  EXPECT_NEAR(target.square().mean().item<double>(), 1, 0.5) << "24 squares of variance 1";
}

TEST(Run, APartThatIsNotThereIsSaidBeforeAnyRunIsTrained) {
  const Config config = small_mlp();
  const Workload workload = load_workload(config, c10::kCPU);
  EXPECT_NO_THROW(check_parts(config, parse_runs("fp32,bf16:fp32-part=layers.2"), workload));
  try {
    check_parts(config, parse_runs("fp32,bf16:fp32-part=layer.2"), workload);
    FAIL();
  } catch (const UsageError& error) {
    EXPECT_THAT(error.what(), ::testing::HasSubstr("did you mean layers.2?"));
  }
}

// fp16 gives Inf from 65,520 on. A weight of 300 and an input of 300 give 90,000, also in the test
// of the shipped weights.
class Overflow : public ::testing::Test {
 protected:
  Overflow() {
    config_.epochs = 1;
    config_.batch_size = "4";
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
      return network(model);
    };
    fs::create_directories(folder_);
  }
  ~Overflow() override { fs::remove_all(folder_); }
  RunResult trained(const std::string& spec) {
    return run(config_, parse_run(spec), workload_, c10::kCPU, {.folder = folder_});
  }

  const fs::path folder_ = fs::temp_directory_path() / "demi_overflow_test";
  Config config_;
  Workload workload_;
};

TEST_F(Overflow, IsMendedByAPartInFp32OrByAPolicy) {
  EXPECT_TRUE(trained("fp16").history.failed);
  const RunResult exact = trained("fp32");
  EXPECT_FALSE(exact.history.failed);
  // Both layers, since the second is given what the first has made.
  const RunResult parts = trained("fp16:fp32-part=0:fp32-part=1");
  EXPECT_FALSE(parts.history.failed);
  EXPECT_EQ(parts.history.steps[0].loss, exact.history.steps[0].loss);
  EXPECT_NEAR(parts.test_loss, exact.test_loss, 1e-3 * exact.test_loss);
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

// 8 batches, of which 3 make a step.
TEST(Compare, CountsAndSchedulesStepsOfAccumulatedBatches) {
  Config config = small_mlp();
  config.accumulate = 3;
  config.schedule = "linear";
  const Workload workload = load_workload(config, c10::kCPU);
  const Comparison result = compare({.config = config, .runs = {parse_run("fp32")}}, workload);
  const auto& steps = result.runs[0].history.steps;
  EXPECT_EQ(result.steps_per_epoch, 3);
  ASSERT_EQ(steps.size(), 3u);
  EXPECT_DOUBLE_EQ(steps[1].learning_rate, config.lr * 2 / 3);
  EXPECT_DOUBLE_EQ(steps[2].learning_rate, config.lr / 3);
}

TEST(Run, OutOfMemoryIsToldFromOtherErrors) {
  EXPECT_TRUE(is_out_of_memory(std::bad_alloc()));
  EXPECT_TRUE(is_out_of_memory(std::runtime_error("DefaultCPUAllocator: can't allocate memory")));
  EXPECT_FALSE(is_out_of_memory(std::runtime_error("mat1 and mat2 shapes cannot be multiplied")));
}

}  // namespace
}  // namespace demi::train
