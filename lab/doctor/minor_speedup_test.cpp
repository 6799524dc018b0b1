#include "lab/doctor/minor_speedup.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <chrono>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "demi/autocast/slow_dtype.h"
#include "lab/doctor/formats.h"
#include "lab/profiler/profile_run.h"
#include "lab/recipes/machine.h"
#include "lab/settings/recipe.h"

namespace demi::doctor {
namespace {

using testing::HasSubstr;
using testing::IsEmpty;
using testing::SizeIs;

// A run on a device with units, in which nothing is in the way.
SpeedupFacts sound(bool is_device = true) {
  SpeedupFacts f{.dtype = "fp16", .product_gain = 4, .is_device = is_device, .is_profiled = true};
  f.profile.steps = 5;
  f.profile.is_device = is_device;
  f.profile.step_ms = 10;
  f.profile.phase_ms = {{"data", 0.1}, {"forward", 3}, {"backward", 6}, {"step", 0.9}};
  f.profile.ops_ms = 9;
  f.profile.gflop = 100;
  f.profile.low_time_share = 0.9;
  f.profile.low_flops_share = 1;
  f.profile.idle_share = 0.05;
  f.profile.kernels = 300;
  f.profile.short_share = 0.3;
  f.profile.short_time_share = 0.02;
  return f;
}

std::vector<WeighedDimension> dimensions_of(const torch::nn::Module& module, int64_t batch) {
  std::vector<WeighedDimension> all;
  for (const Dimension& one : check_dimensions(module, {.examples = batch}).dimensions)
    all.push_back({one, 0.3});
  return all;
}

std::string first(const SpeedupFacts& facts) {
  const auto causes = causes_of(facts);
  return causes.empty() ? "none" : causes[0].name + ": " + causes[0].text;
}

TEST(MinorSpeedup, OfASoundRunNothingIsNamed) {
  EXPECT_EQ(first(sound()), "none");
  EXPECT_EQ(first(sound(/*is_device=*/false)), "none");
}

// The twelve: each is planted into a sound run, and named first with its number.
TEST(MinorSpeedup, Bf16BelowComputeCapability8) {
  SpeedupFacts f = sound();
  f.dtype = "bf16";
  f.no_unit = why_slow_on_cuda(75, c10::kBFloat16);
  EXPECT_THAT(first(f), testing::AllOf(HasSubstr("no_unit"), HasSubstr("8.0")));
}

TEST(MinorSpeedup, Fp16BelowComputeCapability7) {
  SpeedupFacts f = sound();
  f.no_unit = why_slow_on_cuda(61, c10::kHalf);
  EXPECT_THAT(first(f), testing::AllOf(HasSubstr("no_unit"), HasSubstr("1/64")));
  f.no_unit = why_slow_on_cuda(60, c10::kHalf);
  EXPECT_THAT(first(f), testing::AllOf(HasSubstr("no_unit"), HasSubstr("7.0")));
}

TEST(MinorSpeedup, AProcessorWhoseProductsAreNoFaster) {
  SpeedupFacts f = sound(/*is_device=*/false);
  f.product_gain = 0.97;
  EXPECT_THAT(first(f), testing::AllOf(HasSubstr("no_unit"), HasSubstr("0.97 times")));
}

TEST(MinorSpeedup, ASmallBatchThatLeavesTheDeviceIdle) {
  SpeedupFacts f = sound();
  f.profile.idle_share = 0.62;
  EXPECT_THAT(first(f), testing::AllOf(HasSubstr("idle"), HasSubstr("62 %"), HasSubstr("batch")));
}

TEST(MinorSpeedup, DataThatComeTooLate) {
  SpeedupFacts f = sound();
  f.profile.idle_share = 0.5;
  f.profile.phase_ms[0].second = 4;
  EXPECT_THAT(first(f), testing::AllOf(HasSubstr("idle"), HasSubstr("40 %"), HasSubstr("workers")));
}

TEST(MinorSpeedup, AnItemInTheLoop) {
  SpeedupFacts f = sound();
  f.profile.syncs = {{"forward: aten::item after aten::relu", 1}};
  EXPECT_THAT(first(f), testing::AllOf(HasSubstr("waits"), HasSubstr("1 times a step"),
                                       HasSubstr("forward: aten::item after aten::relu")));
  f.is_device = false;
  EXPECT_EQ(first(f), "none") << "on a CPU there is nothing to wait for";
}

TEST(MinorSpeedup, APrintedTensor) {
  SpeedupFacts f = sound();
  f.profile.syncs = {{"other: aten::to", 2}, {"loss: aten::item", 1}};
  EXPECT_THAT(first(f), testing::AllOf(HasSubstr("waits"), HasSubstr("3 times a step"),
                                       HasSubstr("other: aten::to (2)")));
}

TEST(MinorSpeedup, KernelsUnder10Microseconds) {
  SpeedupFacts f = sound();
  f.profile.short_share = 0.92;
  f.profile.short_time_share = 0.7;
  EXPECT_THAT(first(f), testing::AllOf(HasSubstr("short_kernels"), HasSubstr("92 % of the 300")));
}

TEST(MinorSpeedup, AWidthThatIsNoMultipleOf8) {
  SpeedupFacts f = sound();
  f.dimensions = dimensions_of(*torch::nn::Linear(1001, 64), 64);
  EXPECT_THAT(first(f), testing::AllOf(HasSubstr("dimensions"), HasSubstr("in_features is 1001"),
                                       HasSubstr("1008")));
}

// BERT's vocabulary (Devlin et al. 2019) in the layer that predicts words.
TEST(MinorSpeedup, AVocabularyThatIsNoMultipleOf8) {
  SpeedupFacts f = sound();
  f.dimensions = dimensions_of(*torch::nn::Linear(768, 30522), 64);
  EXPECT_THAT(first(f),
              testing::AllOf(HasSubstr("dimensions"), HasSubstr("30522"), HasSubstr("30528")));
}

TEST(MinorSpeedup, ANumberOfClassesThatIsNoMultipleOf8) {
  SpeedupFacts f = sound();
  const torch::nn::Sequential model(torch::nn::Conv2d(3, 33, 3), torch::nn::Linear(512, 1001));
  f.dimensions = dimensions_of(*model, 64);
  ASSERT_THAT(f.dimensions, SizeIs(1)) << "the convolution is exempt";
  EXPECT_THAT(first(f), testing::AllOf(HasSubstr("1.out_features is 1001"), HasSubstr("1008")));
}

TEST(MinorSpeedup, ABatchThatIsNoMultipleOf8) {
  SpeedupFacts f = sound();
  f.dimensions = dimensions_of(*torch::nn::Linear(64, 64), 100);
  EXPECT_THAT(first(f), testing::AllOf(HasSubstr("batch_size is 100"), HasSubstr("104")));
}

TEST(MinorSpeedup, MostOfTheTimeInFp32) {
  SpeedupFacts f = sound();
  f.profile.low_time_share = 0.2;
  f.profile.ops = {{.name = "aten::mm", .dtype = "fp16", .ms = 1.8, .is_low = true},
                   {.name = "aten::cdist", .dtype = "fp32", .ms = 6.3},
                   {.name = "aten::empty", .ms = 0.08}};
  EXPECT_THAT(first(f), testing::AllOf(HasSubstr("little_in_16_bits"), HasSubstr("20 %"),
                                       HasSubstr("aten::cdist (fp32, 70 %)")));
  EXPECT_THAT(first(f), testing::Not(HasSubstr("empty"))) << "less than a hundredth";
  f.profile.ops.resize(1);
  EXPECT_THAT(first(f), testing::EndsWith("20 % of the ops' time is in 16 bits"));
}

TEST(MinorSpeedup, SeveralStandInTheOrderInWhichToLook) {
  SpeedupFacts f = sound();
  f.profile.low_time_share = 0.2;
  f.dimensions = dimensions_of(*torch::nn::Linear(64, 10), 64);
  f.profile.short_share = f.profile.short_time_share = 0.8;
  f.profile.syncs = {{"loss: aten::item", 1}};
  f.profile.idle_share = 0.4;
  f.no_unit = "no unit";
  std::vector<std::string> names;
  for (const auto& cause : causes_of(f)) names.push_back(cause.name);
  EXPECT_THAT(names, testing::ElementsAre("no_unit", "idle", "waits", "short_kernels", "dimensions",
                                          "little_in_16_bits"));
}

TEST(MinorSpeedup, DimensionsThatDoNotMatterAreNone) {
  SpeedupFacts f = sound();
  f.dimensions = dimensions_of(*torch::nn::Linear(64, 10), 64);
  f.dimensions[0].flops_share = 0.001;
  EXPECT_EQ(first(f), "none") << "a thousandth of the FLOPs";
  f.dimensions[0].flops_share = 0.3;
  f.dimensions[0].dimension.speedup = 1.01;
  EXPECT_EQ(first(f), "none") << "measured, and gains nothing";
  f.dimensions[0].dimension.speedup = 1.3;
  EXPECT_THAT(first(f), HasSubstr("1.30 times as fast"));
}

TEST(MinorSpeedup, WithoutAProfileOnlyTheUnitIsKnown) {
  SpeedupFacts f = sound();
  f.is_profiled = false;
  f.profile.idle_share = 0.9;
  EXPECT_EQ(first(f), "none");
}

// CUPTI without permission: the times are the host's.
TEST(MinorSpeedup, OfAGpuWithoutItsKernelsOnlyWhatTheHostKnows) {
  SpeedupFacts f = sound();
  f.profile.is_device = false;
  f.profile.idle_share = f.profile.short_share = f.profile.short_time_share = 0.9;
  f.profile.low_time_share = 0.1;
  EXPECT_EQ(first(f), "none");
  f.profile.syncs = {{"loss: aten::item", 1}};
  EXPECT_THAT(first(f), HasSubstr("waits"));
}

// On this machine, as it is measured.
settings::Config config_of_width(int64_t width, int64_t batch) {
  settings::Config config = settings::find_recipe("mlp").config;
  config.in = config.out = width;
  config.model_settings = {{"depth", "2"}};
  config.batch_size = batch;
  config.batches = 4;
  return config;
}

profiler::Summary profiled(const settings::Config& config, const workload::Workload& workload) {
  return profiler::profile_run({.config = config, .warmup = 1, .steps = 2, .kernel_names = false},
                               settings::parse_run("bf16"), workload)
      .summary;
}

// A network with item() after its first layer.
TEST(MeasuredFacts, FindTheItemAndItsPlace) {
  const settings::Config config = config_of_width(64, 32);
  workload::Workload workload = workload::load_workload(config, c10::kCPU);
  const auto make = workload.make_network;
  workload.make_network = [make](uint64_t seed) {
    train::Network network = make(seed);
    network.forward = [forward = network.forward](const data::Batch& batch) {
      at::Tensor out = torch::relu(forward(batch));
      EXPECT_GE(out.sum().item<double>(), 0);
      return out;
    };
    return network;
  };
  const profiler::Summary s = profiled(config, workload);
  ASSERT_THAT(s.syncs, SizeIs(1));
  EXPECT_EQ(s.syncs[0].place, "forward: aten::item after aten::sum");
  EXPECT_EQ(s.syncs[0].calls, 1);
  SpeedupFacts f = sound();
  f.profile.syncs = s.syncs;
  EXPECT_THAT(first(f), HasSubstr("waits"));
}

// A loader that needs 20 ms for a batch of a step that needs far less.
class Late : public data::Loader {
 public:
  explicit Late(std::shared_ptr<const data::Loader> all) : all_(std::move(all)) {}
  int64_t examples() const override { return all_->examples(); }
  int64_t batches() const override { return all_->batches(); }
  data::Batch batch(int64_t epoch, int64_t position) const override {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));  // what is found
    return all_->batch(epoch, position);
  }

 private:
  std::shared_ptr<const data::Loader> all_;
};

TEST(MeasuredFacts, FindDataThatComeTooLate) {
  const settings::Config config = config_of_width(64, 32);
  workload::Workload workload = workload::load_workload(config, c10::kCPU);
  workload.train = std::make_shared<Late>(workload.train);
  SpeedupFacts f = sound(/*is_device=*/false);
  f.profile = profiled(config, workload);
  EXPECT_THAT(first(f), testing::AllOf(HasSubstr("idle"), HasSubstr("workers")));
}

// Layers of 8 by 8 with 8 rows: nothing takes 10 us. The optimizer's step and the host's own work
// between ops may well be named before them.
TEST(MeasuredFacts, FindShortOps) {
  const settings::Config config = config_of_width(8, 8);
  const workload::Workload workload = workload::load_workload(config, c10::kCPU);
  const profiler::Summary s = profiled(config, workload);
  EXPECT_GT(s.short_share, 0.5);
}

TEST(MeasuredFacts, WeighDimensionsByTheirFlops) {
  const settings::Config config = config_of_width(100, 64);
  const workload::Workload workload = workload::load_workload(config, c10::kCPU);
  const SpeedupFacts f = facts_of(config, settings::parse_run("bf16"), workload, c10::kCPU, 1);
  EXPECT_TRUE(f.is_profiled);
  EXPECT_GT(f.product_gain, 0);
  // Two layers of 100 by 100; each has forward and one or two products of backward of five.
  ASSERT_THAT(f.dimensions, SizeIs(4));
  for (const WeighedDimension& one : f.dimensions) {
    EXPECT_EQ(one.dimension.value, 100);
    EXPECT_EQ(one.dimension.next, 104);
    EXPECT_NEAR(one.flops_share, 0.6, 1e-9) << "three of five products";
    EXPECT_GT(one.dimension.speedup, 0);
  }
}

// A region's products are demi's, those without a region LibTorch's: each has its own reason.
TEST(MeasuredFacts, ARunWithoutARegionHasItsOwnReason) {
  const settings::Config config = config_of_width(64, 32);
  const workload::Workload workload = workload::load_workload(config, c10::kCPU);
  const auto reason = [&](const char* run) {
    return facts_of(config, settings::parse_run(run), workload, c10::kCPU, 1).no_unit;
  };
  EXPECT_EQ(reason("fp16"), why_slow(c10::kCPU, c10::kHalf));
  EXPECT_EQ(reason("fp16-true"),
            recipes::slow_precision_warning(parse_precision("fp16-true"), c10::kCPU));
}

TEST(ExplainSpeedups, OnlyWholeRunsIn16BitsBelow1Point2) {
  recipes::Comparison c{.recipe = "mlp", .config = config_of_width(64, 32)};
  for (const char* name : {"fp32", "bf16", "bf16:no-autocast", "fp64"}) {
    recipes::RunResult run{.spec = settings::parse_run(name)};
    run.seconds = 0.01;
    run.speedup = 1;
    run.history.steps.resize(4);
    c.runs.push_back(std::move(run));
  }
  EXPECT_TRUE(has_minor_speedup(c));
  c.runs[1].speedup = 1.2;
  EXPECT_FALSE(has_minor_speedup(c)) << "neither of the others computes in 16 bits";
  c.runs[1].speedup = 1.1;
  c.runs[1].history.stopped = true;
  EXPECT_FALSE(has_minor_speedup(c));
  c.runs[1].history.stopped = false;
  c.runs[0].spec = settings::parse_run("bf16:no-scaler");
  EXPECT_FALSE(has_minor_speedup(c)) << "the first run is not fp32";
}

TEST(ExplainSpeedups, WhatCannotBeMeasuredIsANote) {
  recipes::Comparison c{.recipe = "mlp", .config = config_of_width(64, 32)};
  for (const char* name : {"fp32", "bf16"}) {
    recipes::RunResult run{.spec = settings::parse_run(name)};
    run.seconds = 0.01;
    run.speedup = 1;
    run.history.steps.resize(4);
    c.runs.push_back(std::move(run));
  }
  workload::Workload workload = workload::load_workload(c.config, c10::kCPU);
  workload.make_network = [](uint64_t) -> train::Network { throw std::runtime_error("no memory"); };
  explain_speedups(c, workload, c10::kCPU);
  ASSERT_THAT(c.notes, SizeIs(1));
  EXPECT_THAT(c.notes[0], testing::AllOf(HasSubstr("bf16"), HasSubstr("no memory")));
  EXPECT_THAT(c.runs[1].slow_causes, IsEmpty());
}

}  // namespace
}  // namespace demi::doctor
