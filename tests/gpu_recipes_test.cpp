// Every recipe a few steps on a GPU, in fp16 and bf16; skipped where there is none
// (second_device_test.cpp has the same without one).
#include <gtest/gtest.h>
#include <torch/cuda.h>

#include <cmath>
#include <tuple>

#include "demi/core/cuda_library.h"
#include "demi/graph/device_graph.h"
#include "lab/bench/recipe.h"
#include "lab/recipes/eval.h"
#include "lab/recipes/machine.h"
#include "lab/recipes/run.h"
#include "lab/workload/batch_size.h"
#include "tests/small_recipes.h"

namespace {

using demi::settings::parse_run;

std::string why_no_gpu() {
  const demi::CudaLibrary& library = demi::load_cuda();
  if (!library.loaded) return library.reason;
  return torch::cuda::is_available() ? "" : "LibTorch finds no CUDA device";
}

const c10::Device kGpu(c10::kCUDA, 0);

class Gpu : public ::testing::Test {
 protected:
  Gpu() {
    std::string pattern = (std::filesystem::temp_directory_path() / "demi-gpu-XXXXXX").string();
    folder_ = mkdtemp(pattern.data());
  }
  ~Gpu() override { std::filesystem::remove_all(folder_); }
  void SetUp() override {
    if (const std::string why = why_no_gpu(); !why.empty()) GTEST_SKIP() << why;
  }

  demi::recipes::RunResult train(const demi::settings::Config& config, const std::string& precision,
                                 c10::Device device) {
    return demi::recipes::run(demi::settings::resolve(config, parse_run(precision), device),
                              demi::workload::load_workload(config, device), {.folder = folder_});
  }

  std::filesystem::path folder_;
};

class GpuRecipes : public Gpu,
                   public ::testing::WithParamInterface<std::tuple<std::string, std::string>> {};

TEST_P(GpuRecipes, TrainAsOnTheCpu) {
  const auto& [recipe, precision] = GetParam();
  for (const int64_t workers : {0, 1}) {
    auto config = small_recipes::of(recipe, folder_);
    config.workers = workers;
    const auto expected = train(config, "fp32", c10::kCPU).history.steps;
    const auto result = train(config, precision, kGpu);
    EXPECT_FALSE(result.history.failed) << result.history.failed.value_or("");
    ASSERT_EQ(result.history.steps.size(), expected.size());
    for (std::size_t i = 0; i < expected.size(); ++i)
      EXPECT_NEAR(result.history.steps[i].loss, expected[i].loss,
                  0.25 * std::fabs(expected[i].loss))  // four examples: rounding shows
          << "step " << i + 1 << ", workers " << workers;
  }
}

INSTANTIATE_TEST_SUITE_P(OfTheTable, GpuRecipes,
                         ::testing::Combine(::testing::ValuesIn(small_recipes::names()),
                                            ::testing::Values("fp16", "bf16")),
                         [](const auto& test) {
                           return small_recipes::plain(std::get<0>(test.param) + "_" +
                                                       std::get<1>(test.param));
                         });

// Steps, tests and the drawing of batches in graphs: the same kernels on the same numbers, whose
// sums may have another order.
TEST_F(Gpu, TrainsAndTestsInGraphsAsPlainly) {
  if (const std::string why = demi::graph::machine_graphs().obstacle(kGpu); !why.empty())
    GTEST_SKIP() << why;
  for (const char* recipe : {"fashion-cnn", "cifar10-resnet50"}) {
    SCOPED_TRACE(recipe);
    auto config = small_recipes::of(recipe, folder_);
    config.workers = 0;
    config.epochs = 6;
    config.cuda_graph = "off";
    const auto plain = train(config, "bf16", kGpu).history;
    config.cuda_graph = "on";
    const auto graphed = train(config, "bf16", kGpu).history;
    ASSERT_EQ(graphed.steps.size(), plain.steps.size());
    for (std::size_t i = 0; i < plain.steps.size(); ++i)
      EXPECT_NEAR(graphed.steps[i].loss, plain.steps[i].loss, 0.05 * std::fabs(plain.steps[i].loss))
          << "step " << i + 1;
    ASSERT_EQ(graphed.epochs.size(), plain.epochs.size());
    for (std::size_t i = 0; i < plain.epochs.size(); ++i)
      EXPECT_NEAR(graphed.epochs[i].validation->loss, plain.epochs[i].validation->loss,
                  0.05 * std::fabs(plain.epochs[i].validation->loss))
          << "epoch " << i + 1;
  }
}

TEST_F(Gpu, EvaluatesASavedTextModelAndTimesItsStep) {
  const auto config = small_recipes::of("imdb-lstm", folder_);
  train(config, "bf16", kGpu);
  const auto saved =
      demi::recipes::evaluate_saved(folder_ / "model.safetensors", {.device = "cuda"});
  ASSERT_EQ(saved.runs.size(), 2u);
  EXPECT_TRUE(std::isfinite(saved.runs.back().evaluation.loss));
  EXPECT_NO_THROW(
      demi::bench::bench_recipe({.config = config, .warmup = 2, .steps = 1, .rounds = 1}, kGpu));
  EXPECT_GE(
      demi::workload::find_batch_size(demi::settings::resolve(config, parse_run("fp16"), kGpu),
                                      demi::workload::load_workload(config, kGpu)),
      1);
}

TEST_F(Gpu, IsCalledByItsName) {
  const auto machine = demi::recipes::machine(kGpu);
  ASSERT_TRUE(machine.gpu);
  EXPECT_NE(machine.device_name, "cuda:0");
  EXPECT_GT(machine.gpu->memory_bytes, int64_t{1} << 30);
  EXPECT_FALSE(machine.gpu->driver.empty());
}

}  // namespace
