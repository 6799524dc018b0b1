#include "lab/recipes/run.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "demi/checkpoint/checkpoint.h"
#include "demi/core/error.h"
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
