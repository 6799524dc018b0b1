#include "lab/profiler/profile_run.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "demi/autocast/slow_dtype.h"
#include "demi/core/error.h"
#include "demi/loop/step.h"
#include "demi/optim/sgd.h"
#include "demi/profile/phase_timer.h"
#include "lab/profiler/profile_report.h"
#include "lab/profiler/recording.h"
#include "lab/settings/recipe.h"

namespace demi::profiler {
namespace {

using testing::HasSubstr;

// Three layers of 128 by 128, 64 rows a step.
settings::Config small_mlp() {
  settings::Config config = settings::find_recipe("mlp").config;
  config.in = config.out = 128;
  config.batch_size = 64;
  config.batches = 4;
  return config;
}

const RunProfile& profile_of(const std::string& precision) {
  static std::map<std::string, RunProfile> known;
  const auto found = known.find(precision);
  if (found != known.end()) return found->second;
  const settings::Config config = small_mlp();
  const workload::Workload workload = workload::load_workload(config, c10::kCPU);
  return known[precision] = profile_run({.config = config, .warmup = 2, .steps = 3},
                                        settings::parse_run(precision), workload);
}

// If the processor has no BF16 instructions, demi's products multiply in FP32.
bool bf16_runs_through_fp32() { return !why_slow(c10::kCPU, c10::kBFloat16).empty(); }

double calls_of(const Summary& summary, const std::string& op) {
  double calls = 0;
  for (const OpUse& use : summary.ops)
    if (use.name == op) calls += use.calls;
  return calls;
}

// Forward 3 products; backward 3 for weights and 2 for inputs, the first layer's needs none. Each
// is 2 x 64 x 128 x 128.
TEST(ProfileRun, FlopsOfAStepAreTheFormulas) {
  for (const std::string precision : {"fp32", "bf16"}) {
    const Summary& s = profile_of(precision).summary;
    const bool are_own = precision == "bf16" && bf16_runs_through_fp32();
    EXPECT_NEAR(s.gflop, 8 * 2e-9 * 64 * 128 * 128, 1e-12) << precision;
    EXPECT_EQ(calls_of(s, "aten::addmm"), 3) << precision;
    EXPECT_EQ(calls_of(s, "aten::mm"), are_own ? 0 : 5) << precision;
    EXPECT_EQ(calls_of(s, "demi.product"), are_own ? 8 : 0) << precision;
  }
}

TEST(ProfileRun, TheShareOfLowPrecision) {
  EXPECT_EQ(profile_of("fp32").summary.low_flops_share, 0);
  EXPECT_EQ(profile_of("fp32").summary.low_time_share, 0);
  EXPECT_EQ(profile_of("fp32").summary.casts, 0);
  const Summary& bf16 = profile_of("bf16").summary;
  EXPECT_EQ(bf16.low_flops_share, bf16_runs_through_fp32() ? 0 : 1)
      << "every product of the region, if the processor computes it in bf16";
  EXPECT_GT(bf16.low_time_share, 0);
  EXPECT_GE(bf16.casts, 2) << "the input to bf16, the output to fp32 for the loss";
}

TEST(ProfileRun, PhasesAddUpToTheStep) {
  const Summary& s = profile_of("bf16").summary;
  double sum = 0;
  for (const auto& [name, ms] : s.phase_ms) {
    sum += ms;
    if (name != "unscale") {
      EXPECT_GT(ms, 0) << name;
    }
  }
  EXPECT_DOUBLE_EQ(sum, s.step_ms);
  EXPECT_EQ(s.phase_ms.size(), profile::kPhaseNames.size());
  EXPECT_GT(profile_of("bf16").plain_ms, 0);
  EXPECT_GT(profile_of("bf16").recorded_ms, 0);
}

TEST(ProfileRun, ClippingIsThePhaseUnscale) {
  settings::Config config = small_mlp();
  config.clip_norm = 1;
  const workload::Workload workload = workload::load_workload(config, c10::kCPU);
  const RunProfile run =
      profile_run({.config = config, .warmup = 1, .steps = 1, .kernel_names = false},
                  settings::parse_run("fp32"), workload);
  for (const auto& [name, ms] : run.summary.phase_ms)
    if (name == "unscale") {
      EXPECT_GT(ms, 0);
    }
}

TEST(ProfileRun, RefusesNoSteps) {
  const settings::Config config = small_mlp();
  const workload::Workload workload = workload::load_workload(config, c10::kCPU);
  for (const auto& [warmup, steps] : {std::pair{0, 1}, std::pair{1, 0}, std::pair{1, -3}})
    EXPECT_THROW(profile_run({.config = config, .warmup = warmup, .steps = steps},
                             settings::parse_run("fp32"), workload),
                 UsageError);
}

// Another profiler is on, and there is no NVTX without CUDA.
TEST(ProfileRun, NamesWhatIsMissingAndGivesTheRest) {
  const settings::Config config = small_mlp();
  const workload::Workload workload = workload::load_workload(config, c10::kCPU);
  const Recording other(c10::kCPU);
  const RunProfile run = profile_run({.config = config,
                                      .warmup = 1,
                                      .steps = 1,
                                      .kernel_names = false,
                                      .ranges = Ranges::Kind::nvtx},
                                     settings::parse_run("fp32"), workload);
  ASSERT_EQ(run.missing.size(), 2U);
  EXPECT_THAT(run.missing[0], HasSubstr("a profiler of LibTorch is on already"));
  EXPECT_GT(run.plain_ms, 0);
  EXPECT_EQ(run.overhead(), 0);
  Profile profile{.recipe = "mlp", .config = config, .steps = 1, .runs = {run}};
  EXPECT_GE(to_tables(profile).size(), 3U);
  EXPECT_THAT(json_of(profile).dump(), HasSubstr("already"));
}

// Chrome's trace event format: an object with traceEvents, whose complete events have ph "X".
TEST(ProfileRun, WritesATrace) {
  const auto file = std::filesystem::path(testing::TempDir()) / "demi-trace.json";
  std::filesystem::remove(file);
  const settings::Config config = small_mlp();
  const workload::Workload workload = workload::load_workload(config, c10::kCPU);
  const RunProfile run =
      profile_run({.config = config, .warmup = 1, .steps = 2, .kernel_names = false, .trace = file},
                  settings::parse_run("bf16"), workload);
  EXPECT_EQ(run.trace, file);
  const auto trace = nlohmann::json::parse(std::ifstream(file));
  const std::string host = trace.value("host_name", "");
  EXPECT_EQ(host.find_first_not_of(' '), host.npos) << "such files are shared";
  int forwards = 0, products = 0;
  for (const auto& event : trace["traceEvents"]) {
    forwards += event["ph"] == "X" && event["name"] == "demi::forward";
    products += event["ph"] == "X" && event["name"] == "aten::addmm";
  }
  EXPECT_EQ(forwards, 2);
  EXPECT_EQ(products, 6);
  EXPECT_THROW(
      profile_run(
          {.config = config, .warmup = 1, .steps = 1, .trace = "/nowhere/at/all/trace.json"},
          settings::parse_run("fp32"), workload),
      TrainingError);
}

TEST(Recording, OneAtATimeAndGoneAfterwards) {
  {
    const Recording first(c10::kCPU);
    EXPECT_THROW(Recording second(c10::kCPU), DeviceError);
  }
  Recording next(c10::kCPU);
  torch::ones({8, 8}).mm(torch::ones({8, 8}));
  const auto events = next.finish();
  const auto product = std::ranges::find(events, std::string("aten::mm"), &Event::name);
  ASSERT_NE(product, events.end());
  EXPECT_EQ(product->shapes[1], (std::vector<std::int64_t>{8, 8}));
  EXPECT_EQ(dtype_of(product->dtypes[0]), "fp32");
  EXPECT_GE(product->end_ns, product->start_ns);
}

// 8 rows of 32 numbers to 16: 2 x 8 x 32 x 16 operations in forward, and as many for the weight's
// gradient.
TEST(Recording, OfALoopOfOnesOwnIsSummarised) {
  torch::nn::Linear model(32, 16);
  demi::optim::SGD sgd(model->parameters(), demi::optim::SGDOptions(0.1));
  loop::Step step({.models = {model.get()}, .optimizers = {&sgd}});
  const at::Tensor x = torch::ones({8, 32});
  Recording recording(c10::kCPU);
  for (int i = 0; i < 3; ++i) {
    step.batch([&] { return model->forward(x); },
               [](const at::Tensor& out) { return out.square().mean(); });
    step.finish();
  }
  const Summary summary = summarise(recording.finish(), 3);
  EXPECT_DOUBLE_EQ(summary.gflop, 2 * 2 * 8 * 32 * 16 / 1e9);
  for (const auto& [phase, ms] : summary.phase_ms)
    if (phase == "forward" || phase == "loss" || phase == "backward" || phase == "step") {
      EXPECT_GT(ms, 0) << phase;
    }
}

TEST(Recording, RangesWithoutCudaAreRefusedByName) {
  if (torch::cuda::is_available()) GTEST_SKIP() << "there is CUDA";
  try {
    const Ranges ranges(Ranges::Kind::nvtx);
    FAIL() << "no NVTX without CUDA";
  } catch (const DeviceError& error) {
    EXPECT_THAT(error.what(), HasSubstr("NVTX"));
  }
}

Profile both() {
  return {.recipe = "mlp",
          .config = small_mlp(),
          .machine = recipes::machine(c10::kCPU),
          .steps = 3,
          .runs = {profile_of("fp32"), profile_of("bf16")}};
}

TEST(ProfileReport, TheSameOpsSideBySide) {
  const auto tables = to_tables(both());
  ASSERT_GE(tables.size(), 3U);
  EXPECT_EQ(tables[0].rows.size(), 2U);
  const report::Table& ops = tables[2];
  ASSERT_EQ(ops.columns.size(), 7U);
  const auto row =
      std::ranges::find_if(ops.rows, [](const auto& one) { return one[0] == "addmm"; });
  ASSERT_NE(row, ops.rows.end());
  EXPECT_EQ((*row)[2], "3");
  EXPECT_EQ((*row)[3], "fp32");
  EXPECT_EQ((*row)[5], "3");
  EXPECT_EQ((*row)[6], "bf16");
}

TEST(ProfileReport, JsonHasAllOps) {
  const Profile profile = both();
  const auto json = json_of(profile);
  ASSERT_EQ(json["runs"].size(), 2U);
  EXPECT_EQ(json["runs"][1]["ops"].size(), profile.runs[1].summary.ops.size());
  EXPECT_TRUE(json["runs"][0]["tensor_core_share"].is_null()) << "a CPU has none";
  EXPECT_EQ(json["runs"][0]["phases"].size(), profile::kPhaseNames.size());
}

TEST(ProfileReport, SaysWhatGraphsHoldWhereThereAreSome) {
  Profile profile = both();
  EXPECT_FALSE(json_of(profile)["runs"][1].contains("graph_bytes"));
  profile.runs[1].graph_bytes = 12'345'678;
  EXPECT_EQ(json_of(profile)["runs"][1]["graph_bytes"], 12'345'678);
  EXPECT_THAT(to_tables(profile)[0].notes,
              testing::Contains("bf16: its graphs hold 12.3 MB beside the memory of plain steps."));
}

// Of a device alone.
TEST(ProfileReport, HasLaunchesAndBusyTimeOfADevice) {
  Profile profile = both();
  EXPECT_FALSE(json_of(profile)["runs"][1].contains("launches"));
  Summary& summary = profile.runs[1].summary;
  summary.is_device = true;
  summary.launches = 2;
  summary.busy_ms = 0.82;
  const auto json = json_of(profile)["runs"][1];
  EXPECT_EQ(json["launches"], 2);
  EXPECT_EQ(json["busy_ms"], 0.82);
}

TEST(ProfileReport, WhatIsMissingIsSaid) {
  Profile profile = both();
  profile.runs[1].missing = {"no kernel was recorded"};
  std::string notes;
  const std::vector<report::Table> tables = to_tables(profile);
  for (const std::string& note : tables[0].notes) notes += note + "\n";
  EXPECT_THAT(notes, HasSubstr("no kernel was recorded"));
  EXPECT_THAT(report::to_html(to_page(profile, "demi profile mlp")), HasSubstr("demi profile mlp"));
}

}  // namespace
}  // namespace demi::profiler
