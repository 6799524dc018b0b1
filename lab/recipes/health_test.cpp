#include "lab/recipes/health.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>

namespace demi::train {
namespace {

monitor::ExponentHistogram histogram(std::vector<std::pair<int, int64_t>> counts, int64_t zeros) {
  monitor::ExponentHistogram made;
  for (const auto& [exponent, times] : counts)
    made.counts[static_cast<std::size_t>(exponent - monitor::ExponentHistogram::kLowest)] = times;
  made.zeros = zeros;
  return made;
}

// Times a loss scale of 2^10. Of the weights' 100 gradients 10 are 0, and 20 are 2^-30 themselves.
monitor::StepHealth step_health() {
  return {.epoch = 2,
          .step = 7,
          .loss_scale = 1024,
          .grad_norm = 0.5,
          .skipped = false,
          .layers = {{.name = "fc",
                      .weight_gradients = histogram({{-20, 20}, {-5, 70}}, 10),
                      .activation_gradients = histogram({{2, 4}}, 0),
                      .update_ratio = 0.25}}};
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

Comparison comparison_of(std::vector<monitor::StepHealth> health) {
  Comparison made;
  made.config.monitor = 5;
  made.runs.emplace_back();
  made.runs[0].spec = parse_run("fp16");
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
  EXPECT_EQ(weights.note,
            "Exactly zero: 10.00 %. In fp16, unscaled, 20.00 % would become zero and 0.00 % would "
            "overflow; times the loss scale 0.00 % and 0.00 %.");
  ASSERT_EQ(weights.marks.size(), 3u);
  EXPECT_EQ(weights.marks[0].x, -24);
  EXPECT_EQ(weights.marks[1].x, -14);
  EXPECT_NEAR(weights.marks[2].x, 16, 1e-3);
  const auto& table = std::get<report::Table>(section->blocks.back());
  EXPECT_EQ(table.title, "fp16: layers in step 7");
  ASSERT_EQ(table.rows.size(), 1u);
  EXPECT_EQ(table.rows[0].front(), "fc");
  EXPECT_EQ(table.rows[0].back(), "0.25");
  EXPECT_FALSE(health_section(comparison_of({})));
}

}  // namespace
}  // namespace demi::train
