#include "lab/results/verdict.h"

#include <gmock/gmock.h>

#include <cmath>
#include <string>
#include <vector>

namespace demi::results {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

recipes::RunResult run_of(const std::string& spec, const std::vector<double>& losses) {
  recipes::RunResult run;
  run.spec = settings::parse_run(spec);
  for (const double loss : losses)
    run.history.steps.push_back(
        {.step = static_cast<int64_t>(run.history.steps.size()) + 1, .loss = loss});
  return run;
}

// What the words say follows from the losses that are written here.
TEST(Verdict, SaysWhichRunLearned) {
  recipes::Comparison c;
  c.runs = {run_of("fp32", {8, 4, 2}), run_of("fp16:no-scaler", {8, 8, 7.96}),
            run_of("fp16:no-skip", {8, NAN, NAN}), run_of("bf16", {8, 9, 12})};
  EXPECT_EQ(
      learning_verdict(c),
      "Training loss, first steps to last: fp32 8 to 2 (learned); fp16:no-scaler 8 to 7.96 "
      "(stands still); fp16:no-skip ended in NaN or Inf, from step 2 on; bf16 8 to 12 (grew).");
  EXPECT_TRUE(ended_soundly(c.runs[0]));
  EXPECT_FALSE(ended_soundly(c.runs[2]));
  EXPECT_TRUE(learned_differently(c));
  EXPECT_EQ(learning_of(c.runs[0]).verdict, "learned");
  EXPECT_EQ(learning_of(c.runs[0]).last, 2);
  EXPECT_EQ(learning_of(c.runs[2]).verdict, "NaN or Inf");
  std::erase_if(c.runs, [](const recipes::RunResult& run) { return run.spec.label == "fp32"; });
  EXPECT_FALSE(learned_differently(c)) << "none learned";
  c.runs = {run_of("fp32", {8, 4, 2}), run_of("bf16", {8, 4, 3}), run_of("fp16", {})};
  EXPECT_FALSE(learned_differently(c)) << "both did, and one has no step";
  c.runs = {run_of("fp32", {8, 7.8, 7.8}), run_of("bf16", {8, 7.9, 7.9})};
  EXPECT_FALSE(learned_differently(c)) << "a few steps of noise";
  c.runs.resize(1);
  EXPECT_EQ(learning_verdict(c), "");
}

// Log likelihoods and other losses below 0 fall as those above it.
TEST(Verdict, OfLossesBelowZeroIsByTheirFall) {
  const auto verdict = [](const std::vector<double>& losses) {
    return learning_of(run_of("fp32", losses)).verdict;
  };
  EXPECT_EQ(verdict({-1, -3}), "learned");
  EXPECT_EQ(verdict({-3, -1}), "grew");
  EXPECT_EQ(verdict({1, -1}), "learned");
  EXPECT_EQ(verdict({-1, 1}), "grew");
  EXPECT_EQ(verdict({-1, -1.01}), "stands still");
  EXPECT_EQ(verdict({0, 1}), "") << "there is no share of 0";
  recipes::Comparison c;
  c.runs = {run_of("fp32", {-2, -3}), run_of("bf16", {-2, -2})};
  EXPECT_TRUE(learned_differently(c)) << "lower by half of 2";
  c.runs = {run_of("fp32", {-2, -2.9}), run_of("bf16", {-2, -2})};
  EXPECT_FALSE(learned_differently(c));
}

// In fp16 the first steps may overflow, and are skipped.
TEST(Verdict, LeavesOutStepsWhoseLossIsNoNumber) {
  const Learning learning = learning_of(run_of("fp16", {INFINITY, 8, NAN, 9}));
  EXPECT_EQ(learning.verdict, "grew");
  EXPECT_EQ(learning.first, 8);
  EXPECT_EQ(learning.last, 9);
  const Learning lost = learning_of(run_of("fp16", {8, 4, NAN}));
  EXPECT_EQ(lost.verdict, "NaN or Inf");
  EXPECT_EQ(lost.first, 8);
  EXPECT_TRUE(std::isnan(lost.last)) << "as it ended";
  EXPECT_TRUE(std::isnan(learning_of(run_of("fp16", {NAN, NAN})).first));
}

monitor::LayerHealth layer_of(const char* name, int64_t zeros, int64_t numbers, double norm) {
  monitor::LayerHealth layer{.name = name};
  layer.weight_gradients.zeros = zeros;
  layer.weight_gradients.counts[0 - monitor::ExponentHistogram::kLowest] = numbers;
  layer.weight_gradients.sum_of_squares = norm * norm;
  return layer;
}

TEST(Verdict, NamesLayersWhoseUpdatesTheFormatLoses) {
  recipes::RunResult run = run_of("bf16-true", {1, 1});
  monitor::StepHealth one{.step = 1,
                          .layers = {layer_of("fc", 0, 10, 1), layer_of("head", 0, 10, 1)}};
  one.layers[0].unchanged = 0.9;
  one.layers[1].unchanged = 0.6;
  monitor::StepHealth other = one;
  other.layers[0].unchanged = 0.8;
  other.layers[1].unchanged = 0.5;
  run.health = {one, other};
  EXPECT_THAT(
      health_verdicts(run),
      ElementsAre(HasSubstr("bf16-true: updates are too small for the format of the weights, "
                            "most of which the last monitored step left as they were: fc "
                            "(80.00 %). More bits")));
  run.health[1].layers[0].unchanged = 0.5;
  EXPECT_THAT(health_verdicts(run), ElementsAre(HasSubstr("no layer is dead")));
}

TEST(Verdict, NamesDeadLayersAndExplodingGradients) {
  recipes::RunResult run = run_of("fp16", {1, 1});
  EXPECT_THAT(health_verdicts(run), IsEmpty());
  const auto step = [](int64_t number, double scale, double norm) {
    monitor::StepHealth one{.step = number, .loss_scale = scale};
    one.layers = {layer_of("dead", 10, 0, 0), layer_of("alive", 9, 1, 4),
                  layer_of("loud", 0, 10, norm)};
    return one;
  };
  run.health = {step(1, 2, 8), step(101, 4, 16)};
  EXPECT_THAT(health_verdicts(run), ElementsAre(HasSubstr("dead: dead. All gradients of its")));
  run.health = {step(1, 2, 8), step(101, 4, 32000)};  // unscaled 4, then 8000
  EXPECT_THAT(health_verdicts(run),
              ElementsAre(HasSubstr("dead: dead."),
                          HasSubstr("explode, by L2 norm: loud (4 in step 1, 8000 in step 101)")));
  run.health[1].skipped = true;
  run.health[0].layers.erase(run.health[0].layers.begin());
  EXPECT_THAT(health_verdicts(run),
              ElementsAre("fp16: no layer is dead and no gradient explodes in "
                          "the 1 monitored step."));
  run.health[0].layers[0].weight_gradients.nans = 1;
  EXPECT_THAT(health_verdicts(run), ElementsAre(HasSubstr("steps that were taken: alive.")));
}

}  // namespace
}  // namespace demi::results
