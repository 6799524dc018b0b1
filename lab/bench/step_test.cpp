#include "lab/bench/step.h"

#include <gtest/gtest.h>

#include <map>
#include <set>
#include <string>
#include <utility>

#include "demi/core/error.h"

namespace demi::bench {
namespace {

TEST(BenchStep, ChecksTimesAndCountsEveryOptimizer) {
  const std::map<std::string, double> bytes{
      {"sgd", 14},   {"sgd-momentum", 22}, {"adam", 30},    {"adamw", 30},
      {"lamb", 42},  {"lion", 22},         {"rmsprop", 22}, {"rmsprop-momentum", 30},
      {"nadam", 30}, {"radam", 30},        {"adagrad", 22}, {"muon", 26}};
  const std::set<std::string> ours_alone{"lamb", "lion", "nadam", "radam", "muon"};
  for (const auto& name : step_bench_optimizers()) {
    const StepBenchResult result =
        bench_step({.optimizer = name, .parameters = 20000, .tensors = 3, .rounds = 1});
    EXPECT_EQ(result.bytes_per_parameter, bytes.at(name)) << name;
    EXPECT_GT(result.ms, 0);
    EXPECT_GT(result.host_us, 0);
    EXPECT_GT(result.host_loop_us, 0);
    EXPECT_GT(result.copy_gb_per_s, 0);
    EXPECT_EQ(result.torch_optim_ms > 0, !ours_alone.contains(name)) << name;
  }
}

TEST(BenchStep, MomentsInBf16MoveAndHoldHalf) {
  const std::map<std::string, std::pair<double, double>> bytes{// moved, held
                                                               {"adamw", {22, 4}},
                                                               {"lamb", {30, 4}},
                                                               {"lion", {18, 2}},
                                                               {"sgd-momentum", {18, 2}}};
  for (const auto& [name, both] : bytes) {
    const StepBenchResult result = bench_step({.optimizer = name,
                                               .parameters = 20000,
                                               .tensors = 2,
                                               .rounds = 1,
                                               .peer = false,
                                               .moments = "bf16"});
    EXPECT_EQ(result.bytes_per_parameter, both.first) << name;
    EXPECT_EQ(result.state_bytes_per_parameter, both.second) << name;
  }
}

TEST(BenchStep, MomentsInInt8MoveAndHoldAQuarterAndTheirScales) {
  const StepBenchResult result = bench_step(
      {.parameters = 20000 * 32, .tensors = 2, .rounds = 1, .peer = false, .moments = "int8"});
  EXPECT_EQ(result.bytes_per_parameter, 2 + 2 + 8 + 2 + 2 * 2 * (1 + 2.0 / 32));
  EXPECT_EQ(result.state_bytes_per_parameter, 2 * (1 + 2.0 / 32));
}

// The arithmetic: 2 bytes of a gradient, read twice; the weight, what is kept beside it, and the
// moments, each read and written.
TEST(BenchStep, WeightModesMoveAndHoldTheirBytes) {
  const struct {
    const char *mode, *moments;
    double moved, held;
  } cases[] = {{"master", "fp32", 30, 16},    {"split", "fp32", 28, 14},
               {"split", "bf16", 20, 10},     {"split24", "int8", 14.25, 7.125},
               {"stochastic", "bf16", 16, 8}, {"stochastic", "int8", 12.25, 6.125}};
  for (const auto& [mode, moments, moved, held] : cases) {
    const StepBenchResult result = bench_step({.parameters = 20000 * 32,
                                               .tensors = 2,
                                               .rounds = 1,
                                               .peer = false,
                                               .moments = moments,
                                               .weight_mode = mode});
    EXPECT_EQ(result.bytes_per_parameter, moved) << mode << " " << moments;
    EXPECT_EQ(result.held_bytes_per_parameter, held) << mode << " " << moments;
  }
}

// Three matrices of 44 x 44, which is what fits into 2,000. Muon has one moment in FP32.
TEST(BenchStep, OfMatricesCountsTheParametersThatTheyHave) {
  const StepBenchResult result = bench_step(
      {.optimizer = "muon", .parameters = 6000, .tensors = 3, .rounds = 1, .peer = false});
  EXPECT_EQ(result.parameters, 3 * 44 * 44);
  EXPECT_EQ(result.state_bytes_per_parameter, 4);
  EXPECT_EQ(result.held_bytes_per_parameter, 4 + 2 + 2 + 4);
  EXPECT_DOUBLE_EQ(result.gb_per_s, result.bytes_per_parameter * 3 * 44 * 44 / result.ms * 1e-6);
}

TEST(BenchStep, WrongOptionsAreNamed) {
  EXPECT_THROW(bench_step({.weight_mode = "halves"}), UsageError);
  EXPECT_THROW(bench_step({.moments = "int4"}), UsageError);
  EXPECT_THROW(bench_step({.optimizer = "adamv"}), UsageError);
  EXPECT_THROW(bench_step({.parameters = 0}), UsageError);
  EXPECT_THROW(bench_step({.parameters = 2, .tensors = 3}), UsageError);
  EXPECT_THROW(bench_step({.rounds = 0}), UsageError);
  EXPECT_THROW(bench_step({.device = "gpu"}), UsageError);
}

}  // namespace
}  // namespace demi::bench
