#include "lab/results/health.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <string>
#include <utility>
#include <vector>

#include "lab/report/metrics_log.h"

namespace demi::results {
namespace {

monitor::ExponentHistogram histogram(std::vector<std::pair<int, int64_t>> counts, int64_t zeros) {
  monitor::ExponentHistogram made;
  for (const auto& [exponent, times] : counts)
    made.counts[static_cast<std::size_t>(exponent - monitor::ExponentHistogram::kLowest)] = times;
  made.zeros = zeros;
  return made;
}

// Times a loss scale of 2^10. Of the weights' 100 gradients 10 are 0, and 20 are 2^-30 themselves.
using monitor::StepHealth;

monitor::StepHealth step_health() {
  return {.epoch = 2,
          .step = 7,
          .loss_scale = 1024,
          .grad_norm = 0.5,
          .skipped = false,
          .layers = {{.name = "fc",
                      .weight_gradients = histogram({{-20, 20}, {-5, 70}}, 10),
                      .activation_gradients = histogram({{2, 4}}, 0),
                      .update_ratio = 0.25,
                      .unchanged = 0.75}}};
}

template <class Value>
const Value& field(const report::MetricFields& line, const std::string& name) {
  const auto found =
      std::ranges::find_if(line, [&](const auto& entry) { return entry.first == name; });
  if (found == line.end()) throw std::runtime_error(name + " is missing");
  return std::get<Value>(found->second);
}

TEST(Health, HasALineForEachKindOfGradient) {
  const auto lines = health_lines("fp16", step_health());
  ASSERT_EQ(lines.size(), 2u);
  EXPECT_EQ(field<std::string>(lines[0], "run"), "fp16");
  EXPECT_EQ(field<std::string>(lines[0], "gradients"), "weights");
  EXPECT_EQ(field<std::string>(lines[0], "layer"), "fc");
  EXPECT_EQ(field<int64_t>(lines[0], "step"), 7);
  EXPECT_EQ(field<int64_t>(lines[0], "elements"), 100);
  EXPECT_EQ(field<int64_t>(lines[0], "zeros"), 10);
  EXPECT_EQ(field<double>(lines[0], "update_ratio"), 0.25);
  EXPECT_EQ(field<double>(lines[0], "unchanged"), 0.75);
  EXPECT_EQ(field<int64_t>(lines[0], "first_exponent"), -20);
  std::vector<int64_t> counts(16, 0);
  counts.front() = 20;
  counts.back() = 70;
  EXPECT_EQ(field<std::vector<int64_t>>(lines[0], "counts"), counts);
  EXPECT_EQ(field<std::string>(lines[1], "gradients"), "activations");
}

TEST(Health, AHistogramOfTensorBoardHasABucketAPowerOfTwo) {
  const auto made = over_exponents(histogram({{-3, 2}, {-1, 5}}, 9));
  EXPECT_EQ(made.limits, (std::vector<double>{-2, -1, 0}));
  EXPECT_EQ(made.counts, (std::vector<double>{2, 0, 5}));
  EXPECT_EQ(made.count, 7);
  EXPECT_EQ(made.min, -3);
  EXPECT_EQ(made.max, 0);
  EXPECT_EQ(made.sum, -11);         // 2 × -3 + 5 × -1
  EXPECT_EQ(made.sum_squares, 23);  // 2 × 9 + 5 × 1
  EXPECT_EQ(over_exponents({}).count, 0);
}

recipes::Comparison comparison_of(std::vector<monitor::StepHealth> health) {
  recipes::Comparison made;
  made.config.monitor = 5;
  made.runs.emplace_back();
  made.runs[0].spec = settings::parse_run("fp16");
  made.runs[0].health = std::move(health);
  return made;
}

// 2^-30 is below 2^-25, times 2^10 it is 2^-20.
TEST(Health, TheReportSaysWhatFp16WouldFlush) {
  auto skipped = step_health();
  skipped.skipped = true;
  skipped.layers[0].weight_gradients = histogram({{15, 1}}, 0);
  const auto section = health_section(comparison_of({skipped, step_health()}));
  ASSERT_TRUE(section);
  const auto& weights = std::get<report::ExponentBars>(section->blocks[1]);
  EXPECT_EQ(weights.title, "fp16: gradients of weights");
  ASSERT_EQ(weights.bars.size(), 2u);
  EXPECT_EQ(weights.bars[0].percent, (std::map<int, double>{{-30, 20}, {-15, 70}}));
  EXPECT_EQ(weights.bars[1].percent, (std::map<int, double>{{-20, 20}, {-5, 70}}));
  EXPECT_EQ(weights.bars[0].zero_percent, 10);
  EXPECT_EQ(
      weights.note,
      "Exactly zero: 10.00 %. In fp16, unscaled, 20.00 % would become zero and 0.00 % would "
      "overflow; times the loss scale 0.00 % and 0.00 %. With one scale for each layer, 0.00 % "
      "would become zero in fp8_e4m3, 0.00 % in fp8_e5m2 and 20.00 % in fp4_e2m1; with scales "
      "for blocks, at most so many.")
      << "2^-20 lies 2^15 below 2^-5";
  ASSERT_EQ(weights.marks.size(), 3u);
  EXPECT_EQ(weights.marks[0].x, -24);
  EXPECT_EQ(weights.marks[1].x, -14);
  EXPECT_NEAR(weights.marks[2].x, 16, 1e-3);
  const auto& table = std::get<report::Table>(section->blocks.back());
  EXPECT_EQ(table.title, "fp16: layers in step 7");
  ASSERT_EQ(table.rows.size(), 1u);
  EXPECT_EQ(table.rows[0].front(), "fc");
  ASSERT_EQ(table.rows[0].size(), 12u);
  EXPECT_EQ(table.rows[0][10], "0.25");
  EXPECT_EQ(table.rows[0][11], "75.00 %");
  EXPECT_EQ(table.notes.size(), 2u);
  EXPECT_FALSE(health_section(comparison_of({})));
}

class HealthFile : public ::testing::Test {
 protected:
  HealthFile()
      : folder_(std::filesystem::temp_directory_path() /
                ("demi-health-" + std::to_string(::getpid()))) {
    std::filesystem::create_directories(folder_);
  }
  ~HealthFile() override { std::filesystem::remove_all(folder_); }

  std::filesystem::path file() const { return folder_ / "metrics.jsonl"; }
  void write(const std::vector<report::MetricFields>& lines) const {
    report::MetricsLog log(file());
    for (const report::MetricFields& line : lines) log.write(line);
  }
  void append(const std::string& text) const { std::ofstream(file(), std::ios::app) << text; }

  std::filesystem::path folder_;
};

TEST_F(HealthFile, ComesBackAsItWasWritten) {
  StepHealth later = step_health();
  later.step = 12;
  later.loss_scale.reset();
  later.layers[0].update_ratio.reset();
  later.layers.push_back({.name = "head"});
  write(health_lines("fp16", step_health()));
  write({{{"run", std::string("fp16")}, {"step", int64_t{12}}, {"skipped", true}}});
  write(health_lines("fp16", later));
  write(health_lines("bf16", later));
  const HealthLines read = read_health(file());
  EXPECT_TRUE(read.left_out.empty());
  ASSERT_EQ(read.of_run.size(), 2u);
  const auto& steps = read.of_run.at("fp16");
  ASSERT_EQ(steps.size(), 2u);
  EXPECT_EQ(steps[0].epoch, 2);
  EXPECT_EQ(steps[0].step, 7);
  EXPECT_EQ(steps[0].loss_scale, 1024);
  EXPECT_FALSE(steps[0].skipped);
  ASSERT_EQ(steps[0].layers.size(), 1u);
  EXPECT_EQ(steps[0].layers[0].name, "fc");
  EXPECT_EQ(steps[0].layers[0].weight_gradients, step_health().layers[0].weight_gradients);
  EXPECT_EQ(steps[0].layers[0].activation_gradients, step_health().layers[0].activation_gradients);
  EXPECT_EQ(steps[0].layers[0].update_ratio, 0.25);
  EXPECT_EQ(steps[0].layers[0].unchanged, 0.75);
  EXPECT_TRUE(steps[1].skipped);
  EXPECT_FALSE(steps[1].loss_scale);
  EXPECT_EQ(steps[1].layers.size(), 2u);
  EXPECT_FALSE(steps[1].layers[0].update_ratio);
  EXPECT_FALSE(read.of_run.at("bf16")[0].skipped);
}

TEST_F(HealthFile, LinesThatLackAFieldAreLeftOutAndNamed) {
  const auto sound = health_lines("fp16", step_health());
  std::vector<std::string> expected;
  int64_t number = 0;
  for (const char* name :
       {"run", "epoch", "step", "layer", "loss_scale", "elements", "zeros", "subnormals",
        "infinities", "nans", "norm", "first_exponent", "counts"}) {
    report::MetricFields line = sound[0];
    std::erase_if(line, [&](const auto& field) { return field.first == name; });
    write({line});
    expected.push_back("line " + std::to_string(++number) + " has no " + name + ", or a wrong one");
  }
  const auto with = [&](const char* name, const report::MetricValue& value) {
    report::MetricFields line = sound[0];
    for (auto& field : line)
      if (field.first == name) field.second = value;
    write({line});
    expected.push_back("line " + std::to_string(++number) + " has no " + name + ", or a wrong one");
  };
  with("first_exponent", int64_t{-150});
  with("first_exponent", int64_t{127});  // 16 counts lie beyond
  with("elements", int64_t{99});
  with("zeros", std::string("none"));
  append("\xff\n");
  expected.push_back("line " + std::to_string(++number) + " is no JSON object");
  write({sound[0]});
  const HealthLines read = read_health(file());
  std::vector<std::string> left_out = read.left_out;
  std::ranges::sort(left_out);
  std::ranges::sort(expected);
  EXPECT_EQ(left_out, expected);
  EXPECT_EQ(read.of_run.at("fp16").size(), 1u);
}

TEST_F(HealthFile, ARunThatGoesOnShowsTheStepsBeforeIt) {
  StepHealth before = step_health(), again = step_health(), now = step_health();
  before.step = 1;
  again.step = now.step = 6;
  again.layers[0].name = "as the file has it";
  write(health_lines("fp16", before));
  write(health_lines("fp16", again));
  append("1\n2\n3\n4\n5\n6\n7\n");
  recipes::Comparison made = comparison_of({now});
  add_earlier_health(made, file());
  ASSERT_EQ(made.runs[0].health.size(), 2u);
  EXPECT_EQ(made.runs[0].health[0].step, 1);
  EXPECT_EQ(made.runs[0].health[1].layers[0].name, "fc");
  ASSERT_EQ(made.notes.size(), 1u);
  EXPECT_EQ(made.notes[0],
            "Left out of what was read from metrics.jsonl: line 5 is no JSON object; line 6 is no "
            "JSON object; line 7 is no JSON object; line 8 is no JSON object; line 9 is no JSON "
            "object; 2 more.");
  recipes::Comparison other = comparison_of({});
  other.runs[0].spec = settings::parse_run("bf16");
  add_earlier_health(other, file());
  EXPECT_TRUE(other.runs[0].health.empty());
}

}  // namespace
}  // namespace demi::results
