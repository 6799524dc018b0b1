#include "lab/recipes/what_if.h"

#include <gmock/gmock.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>
#include <stdexcept>
#include <string>

#include "demi/core/error.h"
#include "lab/recipes/run.h"
#include "lab/report/metrics_log.h"
#include "lab/results/compare_report.h"
#include "lab/settings/resolved.h"

namespace demi::recipes {
namespace {

using monitor::TensorFate;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

// Features that nobody normalised, up to some 95000: the batch itself is beyond fp16.
settings::Config large_inputs() {
  settings::Config c;
  c.model = "mlp";
  c.data = "synthetic-linear";
  c.in = 16;
  c.out = 1;
  c.batches = 20;
  c.batch_size = 64;
  c.optimizer = "sgd";
  c.lr = 1e-3;
  c.loss_weight = 1e-6;
  c.loss = "mse";
  c.loss_scale = "1";
  c.input_scale = 22000;
  return c;
}

class WhatIfRun : public ::testing::Test {
 protected:
  WhatIfRun()
      : folder_(std::filesystem::temp_directory_path() /
                ("demi-what-if-" + std::to_string(::getpid()))) {
    std::filesystem::create_directories(folder_);
  }
  ~WhatIfRun() override { std::filesystem::remove_all(folder_); }

  RunResult train(const settings::Config& config, const std::string& spec) const {
    const workload::Workload workload = workload::load_workload(config, c10::kCPU);
    JobOptions options;
    options.folder = folder_;
    options.prefix = settings::file_name(spec) + "-";
    return run(settings::resolve(config, settings::parse_run(spec)), workload, options);
  }

  std::filesystem::path folder_;
};

TEST_F(WhatIfRun, ItsPolicyTrainsToTheLossOfFp32) {
  settings::Config config = large_inputs();
  config.what_if = "fp16";
  const RunResult exact = train(config, "fp32");
  ASSERT_TRUE(exact.what_if);
  EXPECT_THAT(exact.what_if->fp32_parts(), ElementsAre("layers.0"));
  EXPECT_EQ(exact.what_if_policy, folder_ / "fp32-op-policy-fp16.txt");
  Comparison comparison;
  comparison.runs = {exact};
  EXPECT_THAT(lines_with_policy(comparison,
                                "demi compare mlp --runs fp32 --interleave=200 "
                                "--data-dir 'a b' --what-if fp16"),
              ElementsAre("demi train mlp --data-dir 'a b' --precision fp16 --op-policy " +
                          exact.what_if_policy.string()))
      << "as `demi train` takes it";
  config.what_if.clear();
  config.loss_scale = "auto";
  EXPECT_TRUE(train(config, "fp16:scale=1").history.failed);
  config.op_policy = exact.what_if_policy;
  const RunResult low = train(config, "fp16:scale=1");
  EXPECT_FALSE(low.history.failed) << *low.history.failed;
  ASSERT_EQ(low.history.steps.size(), exact.history.steps.size());
  EXPECT_EQ(low.skipped_steps, 0);
  const auto first = exact.history.steps.front().loss, last = exact.history.steps.back().loss;
  EXPECT_LT(last, 0.5 * first) << "it trains";
  // Two layers in fp16, whose inputs, weights and outputs are rounded, 2^-11 each.
  for (std::size_t i = 0; i < low.history.steps.size(); ++i) {
    const double loss = exact.history.steps[i].loss;
    EXPECT_NEAR(low.history.steps[i].loss, loss, 24 * std::ldexp(1.0, -11) * loss) << i;
  }
  // The other way to use it.
  config.op_policy.clear();
  config.fp32_part = "layers.0";
  EXPECT_EQ(train(config, "fp16:scale=1").history.steps.back().loss, low.history.steps.back().loss);
}

TEST_F(WhatIfRun, NothingIsWrittenIfNothingIsHarmed) {
  settings::Config config = large_inputs();
  config.input_scale = 1;
  config.batches = 2;
  config.what_if = "fp16";
  const RunResult sound = train(config, "fp32");
  ASSERT_TRUE(sound.what_if);
  EXPECT_THAT(sound.what_if->cures, IsEmpty());
  EXPECT_EQ(sound.what_if->batches, 2);
  EXPECT_TRUE(sound.what_if_policy.empty());
  EXPECT_FALSE(std::filesystem::exists(folder_ / "fp32-op-policy-fp16.txt"));
  EXPECT_FALSE(train(config, "bf16").what_if) << "is no FP32 run";
}

TEST(WhatIf, AsksAboutTheRunThatTheConfigWouldBe) {
  settings::Config c;
  c.what_if = "fp16";
  c.init_scale = 1024;
  c.fp32_part = "a,b";
  monitor::WhatIfOptions options = what_if_options(settings::resolve(c));
  EXPECT_EQ(options.format, c10::kHalf);
  EXPECT_EQ(options.loss_scale, 1024);
  EXPECT_TRUE(options.dynamic_scale);
  EXPECT_THAT(options.policy.fp32_parts(), ElementsAre("a", "b"));
  c.loss_scale = "128";
  options = what_if_options(settings::resolve(c));
  EXPECT_EQ(options.loss_scale, 128);
  EXPECT_FALSE(options.dynamic_scale);
  for (const char* off : {"off", "no-scaler"}) {
    c.loss_scale = off == std::string("off") ? "off" : "auto";
    c.scaler = c.loss_scale == "off";
    options = what_if_options(settings::resolve(c));
    EXPECT_EQ(options.loss_scale, 1) << off;
    EXPECT_FALSE(options.dynamic_scale) << off;
  }
  c = settings::Config();
  c.what_if = "bf16";
  options = what_if_options(settings::resolve(c));
  EXPECT_EQ(options.format, c10::kBFloat16);
  EXPECT_EQ(options.loss_scale, 1) << "bf16 needs none";
  c.loss_scale = "dynamic";
  EXPECT_EQ(what_if_options(settings::resolve(c)).loss_scale, c.init_scale);
}

TEST(WhatIf, NeedsAnFp32Run) {
  settings::Config c;
  EXPECT_NO_THROW(check_what_if(c, settings::parse_runs("fp16")));
  c.what_if = "fp16";
  EXPECT_NO_THROW(check_what_if(c, settings::parse_runs("fp32,fp16")));
  EXPECT_NO_THROW(check_what_if(c, settings::parse_runs("tf32")));
  EXPECT_THROW(check_what_if(c, settings::parse_runs("fp16,bf16-true,fp64")), UsageError);
}

Comparison asked() {
  Comparison c{.recipe = "mlp"};
  c.runs.emplace_back();
  c.runs[0].spec = settings::parse_run("fp32");
  c.runs[0].what_if_policy = "runs/x/op-policy-fp16.txt";
  const monitor::FormatLoss large{.elements = 200,
                                  .overflowed = 1,
                                  .flushed = 20,
                                  .subnormal = 50,
                                  .greatest = 70000,
                                  .least_exponent = -30,
                                  .energy = 4,
                                  .flushed_energy = 1,
                                  .first_overflow = 2};
  const monitor::FormatLoss fine{.elements = 10, .greatest = 2, .energy = 1};
  c.runs[0].what_if = monitor::WhatIfResult{
      .batches = 3,
      .first_step = 1,
      .last_step = 3,
      .least_scale = 1024,
      .greatest_scale = 65536,
      .tensors =
          {{.layer = "fc", .op = "linear", .loss = large},
           {.layer = "fc", .op = "relu", .loss = large, .from = "linear in fc"},
           {.layer = "fc", .op = "linear", .place = monitor::TensorPlace::weights, .loss = fine}},
      .cures = {{.name = "fc", .layer = "fc", .op = "linear", .loss = large}}};
  return c;
}

TEST(WhatIf, TheTableNamesTensorsCausesAndCures) {
  const auto tables = what_if_tables(asked());
  ASSERT_EQ(tables.size(), 1u);
  EXPECT_EQ(tables[0].title, "fp32: what if it were fp16");
  ASSERT_EQ(tables[0].rows.size(), 2u);
  EXPECT_THAT(tables[0].rows[0], ElementsAre("fc", "linear", "output", "2^-30 to 7e+04", "0.50 %",
                                             "10.00 %", "25.00 %", "made here", "part fc"));
  EXPECT_THAT(tables[0].rows[1], ElementsAre("fc", "relu", "output", "2^-30 to 7e+04", "0.50 %",
                                             "10.00 %", "25.00 %", "from linear in fc", ""));
  EXPECT_THAT(
      tables[0].notes,
      ElementsAre("In FP32: part fc: the output of linear in fc reaches 70000, beyond fp16, "
                  "first in step 2.",
                  "Policy file: runs/x/op-policy-fp16.txt",
                  HasSubstr("3 batches, steps 1 to 3; gradients times a loss scale of 1024 "
                            "to 65536"),
                  "1 tensor loses nothing but digits."));
  EXPECT_THAT(what_if_tables({.recipe = "mlp"}), IsEmpty());
}

TEST(WhatIf, TheLineToTrainWithIsThatOfTheRunInTheFormat) {
  EXPECT_THAT(lines_with_policy(asked(), "demi train mlp --in 8 --what-if fp16 --device cpu"),
              ElementsAre("demi train mlp --in 8 --device cpu --precision fp16 --op-policy "
                          "runs/x/op-policy-fp16.txt"));
  EXPECT_THAT(lines_with_policy(asked(), "demi compare mlp --runs fp32,bf16 --what-if fp16"),
              ElementsAre("demi train mlp --precision fp16 --op-policy runs/x/op-policy-fp16.txt"));
  Comparison quoted = asked();
  quoted.runs[0].what_if_policy = "it's/p.txt";
  EXPECT_THAT(lines_with_policy(quoted, R"(demi train mlp --op-policy 'it'\''s q' --lr 1)"),
              ElementsAre(R"(demi train mlp --lr 1 --precision fp16 --op-policy 'it'\''s/p.txt')"));
  Comparison sound = asked();
  sound.runs[0].what_if->cures.clear();
  EXPECT_THAT(lines_with_policy(sound, "demi train mlp --what-if fp16"), IsEmpty());
  EXPECT_THAT(what_if_tables(sound)[0].notes[0],
              "No part of the model and no op has to compute in FP32.");
}

TEST(WhatIf, ReportJsonAndMetricsHoldIt) {
  const auto section = what_if_section(asked(), "demi train mlp --what-if fp16");
  ASSERT_TRUE(section);
  EXPECT_THAT(std::get<report::Code>(section->blocks.back()).text, HasSubstr("--op-policy"));
  EXPECT_FALSE(what_if_section({.recipe = "mlp"}, ""));
  const auto json = results::json_of(asked())["runs"][0]["what_if"];
  EXPECT_EQ(json["format"], "fp16");
  EXPECT_EQ(json["fp32_parts"], nlohmann::ordered_json({"fc"}));
  EXPECT_EQ(json["op_policy"], "runs/x/op-policy-fp16.txt");
  EXPECT_EQ(json["cures"][0]["kind"], "part");
  ASSERT_EQ(json["tensors"].size(), 3u);
  EXPECT_EQ(json["tensors"][0]["overflowed"], 1);
  EXPECT_EQ(json["tensors"][0]["lost"], 0.5);
  EXPECT_EQ(json["tensors"][1]["from"], "linear in fc");
  const auto lines = what_if_lines("fp32", *asked().runs[0].what_if);
  ASSERT_EQ(lines.size(), 2u) << "those that are harmed";
}

TEST(WhatIf, TheWorstTwentyAreInTheTable) {
  Comparison c = asked();
  auto& tensors = c.runs[0].what_if->tensors;
  tensors.insert(tensors.begin(), 30, tensors.front());
  const auto table = what_if_tables(c)[0];
  EXPECT_EQ(table.rows.size(), 20u);
  EXPECT_THAT(table.notes[3], "12 tensors are harmed less: result.json and --json name them.");
  tensors.erase(tensors.begin(), tensors.begin() + 11);
  EXPECT_THAT(what_if_tables(c)[0].notes[3],
              "1 tensor is harmed less: result.json and --json name them.");
}

// The cure of one layer's op is none of another layer's, nor of the layer's other ops.
TEST(WhatIf, ACureStandsBesideItsOwnTensorAlone) {
  Comparison c = asked();
  monitor::WhatIfResult& result = *c.runs[0].what_if;
  TensorFate other = result.tensors.front();
  other.layer = "fc2";
  result.tensors.push_back(other);
  result.greatest_scale = result.least_scale;
  const report::Table table = what_if_tables(c)[0];
  ASSERT_EQ(table.rows.size(), 3u);
  EXPECT_EQ(table.rows[0].back(), "part fc");
  EXPECT_EQ(table.rows[1].back(), "") << "relu in fc";
  EXPECT_EQ(table.rows[2].back(), "") << "linear in fc2";
  EXPECT_THAT(table.notes[2], HasSubstr("times a loss scale of 1024. "));
}

}  // namespace
}  // namespace demi::recipes
