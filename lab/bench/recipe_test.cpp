#include "lab/bench/recipe.h"

#include <ATen/ops/mse_loss.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/types.h>

#include <cmath>

#include "demi/core/error.h"
#include "lab/bench/model.h"
#include "lab/bench/progress_testing.h"
#include "lab/settings/recipe.h"
#include "lab/workload/workload.h"

namespace demi::bench {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

RecipeBenchOptions tiny() {
  RecipeBenchOptions options{
      .config = settings::find_recipe("mlp").config, .warmup = 2, .steps = 2, .rounds = 3};
  options.config.in = options.config.out = 16;
  options.config.batch_size = 8;
  options.config.batches = 3;
  return options;
}

std::string refusal(const RecipeBenchOptions& options) {
  try {
    bench_recipe(options, c10::kCPU);
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

// Of the first two batches with the first weights: a learning rate of 0.001 moves them by little.
double first_losses_by_hand(const settings::Config& config) {
  const workload::Workload workload = workload::load_workload(config, c10::kCPU);
  const train::Network network = workload.make_network(0);
  double sum = 0;
  for (int64_t i = 0; i < 2; ++i) {
    const data::Batch batch = workload.train->batch(0, i);
    sum += at::mse_loss(network.forward(batch), batch.target).item<double>();
  }
  return sum / 2;
}

TEST(BenchRecipe, TimesFp32AndTheDevicesMixedPrecision) {
  const RecipeBenchResult result = bench_recipe(tiny(), c10::kCPU);
  EXPECT_EQ(result.batch_size, 8);
  EXPECT_EQ(result.parameters, 3 * (16 * 16 + 16));
  ASSERT_EQ(result.runs.size(), 2u);
  EXPECT_EQ(result.runs[0].precision, "fp32");
  EXPECT_EQ(result.runs[1].precision, "bf16");
  for (const RecipeTiming& run : result.runs) {
    EXPECT_GT(run.min_ms, 0);
    EXPECT_LE(run.min_ms, run.ms);
    EXPECT_LE(run.ms, run.max_ms);
    EXPECT_NEAR(run.loss, first_losses_by_hand(tiny().config), 0.005);
    EXPECT_DOUBLE_EQ(run.speedup, result.runs[0].ms / run.ms);
    EXPECT_FALSE(run.host_us || run.of_device) << "a CPU is no device";
  }
  EXPECT_NE(result.runs[0].loss, result.runs[1].loss) << "the second one does compute in bf16";
}

TEST(BenchRecipe, TellsItsParts) {
  RecipeBenchOptions options = tiny();
  options.rounds = 2;
  ToldParts told;
  options.on_part = told.on_part();
  bench_recipe(options, c10::kCPU);
  EXPECT_THAT(told.parts(),
              ElementsAre("warm-up of fp32", "warm-up of bf16", "round 1 of 2, fp32",
                          "round 1 of 2, bf16", "round 2 of 2, fp32", "round 2 of 2, bf16"));
}

TEST(BenchRecipe, RunsAreChosenAndFp32IsAlwaysThere) {
  RecipeBenchOptions options = tiny();
  options.runs = {settings::parse_run("fp16:scale=128"), settings::parse_run("fp32")};
  const RecipeBenchResult result = bench_recipe(options, c10::kCPU);
  ASSERT_EQ(result.runs.size(), 2u);
  EXPECT_EQ(result.runs[0].precision, "fp32");
  EXPECT_EQ(result.runs[1].precision, "fp16:scale=128");
  EXPECT_EQ(result.runs[1].skipped_steps, 0);
}

TEST(BenchRecipe, ARunInACudaGraphStandsBesideThePlainOne) {
  RecipeBenchOptions options = tiny();
  options.runs = settings::parse_runs("bf16,bf16:cuda-graph=auto");
  const RecipeBenchResult result = bench_recipe(options, c10::kCPU);
  ASSERT_EQ(result.runs.size(), 3u);
  EXPECT_EQ(result.runs[2].precision, "bf16:cuda-graph=auto");
  EXPECT_EQ(result.runs[1].loss, result.runs[2].loss) << "on a CPU it runs plainly";
  options.runs = {settings::parse_run("fp32:cuda-graph=on")};
  EXPECT_THAT(refusal(options), HasSubstr("--cuda-graph"));
}

TEST(BenchRecipe, AnFp32PartOfTheWholeModelTrainsAsInFp32) {
  RecipeBenchOptions options = tiny();
  options.config.fp32_part = "layers.0,layers.2,layers.4";
  const RecipeBenchResult all = bench_recipe(options, c10::kCPU);
  EXPECT_EQ(all.runs[0].loss, all.runs[1].loss);
  options.config.fp32_part = "layers.2";
  const RecipeBenchResult one = bench_recipe(options, c10::kCPU);
  EXPECT_NE(one.runs[0].loss, one.runs[1].loss);
}

// Gradients of the mean of 8 x 16 squares, times the scale, overflow fp16 down to about 2^20.
TEST(BenchRecipe, CarriesTheLossScaleFromRoundToRound) {
  RecipeBenchOptions options = tiny();
  options.runs = {settings::parse_run("fp16")};
  options.config.init_scale = 1 << 24;
  options.warmup = 4;
  const RecipeTiming run = bench_recipe(options, c10::kCPU).runs[1];
  EXPECT_GE(run.skipped_steps, 3);
  EXPECT_LT(run.skipped_steps, 4 + 3 * 2 - 2) << "starting again each time would skip all ten";
}

// Eight steps of a cycle that three batches would make for three.
TEST(BenchRecipe, AScheduleIsMadeForAllSteps) {
  RecipeBenchOptions options = tiny();
  options.config.epochs = 1;
  options.config.schedule = "one-cycle";
  EXPECT_EQ(refusal(options), "");
  options.config.accumulate = 2;
  EXPECT_EQ(refusal(options), "");
}

TEST(BenchRecipe, WhatDoesNotTrainIsNotTimed) {
  RecipeBenchOptions options = tiny();
  options.config.lr = 1e30;
  EXPECT_THAT(refusal(options), HasSubstr("finite"));
}

TEST(BenchRecipe, LossesMustBeFiniteAndNearThoseOfFp32) {
  const std::vector<double> fp32{1, 0.5};
  EXPECT_NO_THROW(check_losses("bf16", fp32, {1.019, 0.4}));
  EXPECT_THROW(check_losses("bf16", fp32, {1.021, 0.5}), TrainingError) << "the first";
  EXPECT_THROW(check_losses("bf16", fp32, {1, 0.2}), TrainingError) << "their mean, below";
  EXPECT_THROW(check_losses("bf16", fp32, {1, 0.8}), TrainingError) << "their mean, above";
  EXPECT_THROW(check_losses("bf16", fp32, {1, NAN}), TrainingError);
  EXPECT_THROW(check_losses("bf16", fp32, {INFINITY, 0.5}), TrainingError);
}

TEST(BenchRecipe, OptionsOutOfRangeAreNamed) {
  RecipeBenchOptions options = tiny();
  options.warmup = 1;
  EXPECT_THAT(refusal(options), HasSubstr("warmup 1"));
  options = tiny();
  options.rounds = 0;
  EXPECT_THAT(refusal(options), HasSubstr("rounds 0"));
  options = tiny();
  options.config.batch_size = 0;
  EXPECT_THAT(refusal(options), HasSubstr("--batch-size 512"));
  options = tiny();
  options.runs = {settings::parse_run("fp32")};
  EXPECT_THAT(refusal(options), HasSubstr("no run to compare with"));
}

ModelBenchRow row(int64_t width, double speedup) {
  ModelBenchRow made{.width = width};
  made.result.runs = {RecipeTiming{}, RecipeTiming{.speedup = speedup}};
  return made;
}

TEST(BenchModel, TheGainBeginsWhereAllFollowingAreFaster) {
  EXPECT_EQ(gain_from({row(64, 1.1), row(256, 0.9), row(1024, 1.2), row(4096, 2)}), 1024);
  EXPECT_EQ(gain_from({row(64, 1.1), row(256, 1.3)}), 64);
  EXPECT_EQ(gain_from({row(64, 1.1), row(256, 0.9)}), std::nullopt);
}

TEST(BenchModel, TellsThePartsOfAllWidths) {
  ToldParts told;
  bench_model({.widths = {32, 8},
               .batch_size = 4,
               .warmup = 2,
               .steps = 1,
               .rounds = 1,
               .on_part = told.on_part()},
              c10::kCPU);
  EXPECT_THAT(told.parts(),
              ElementsAre("width 8: warm-up of fp32", "width 8: warm-up of bf16",
                          "width 8: round 1 of 1, fp32", "width 8: round 1 of 1, bf16",
                          "width 32: warm-up of fp32", "width 32: warm-up of bf16",
                          "width 32: round 1 of 1, fp32", "width 32: round 1 of 1, bf16"));
}

TEST(BenchModel, ARowAWidth) {
  const ModelBenchResult result = bench_model(
      {.widths = {32, 8, 32}, .batch_size = 4, .warmup = 2, .steps = 1, .rounds = 1}, c10::kCPU);
  ASSERT_EQ(result.rows.size(), 2u);
  EXPECT_EQ(result.rows[0].width, 8);
  EXPECT_EQ(result.rows[1].result.parameters, 3 * (32 * 32 + 32));
  EXPECT_GT(result.rows[1].mixed().ms, 0);
  EXPECT_THROW(bench_model({.widths = {}}, c10::kCPU), UsageError);
  EXPECT_THROW(bench_model({.widths = {0}}, c10::kCPU), UsageError);
}

}  // namespace
}  // namespace demi::bench
