#include "demi/scaler/scale_rule.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cmath>
#include <random>

#include "demi/core/error.h"
#include "demi/optim/trajectories_testing.h"
#include "demi/scaler/device_scale.h"
#include "demi/scaler/skip_watch.h"
#include "demi/step/emulated_device_testing.h"

namespace demi {
namespace {

/// The scales along a string of . (clean) and x (Inf).
std::vector<float> walk(const std::string& marks, const GradScalerOptions& options) {
  std::vector<float> scales;
  ScaleState state = first_state(options);
  for (const char mark : marks) {
    state = next_state(state, {.found_inf = mark == 'x'}, options);
    scales.push_back(state.scale);
  }
  return scales;
}

using Scales = std::vector<float>;

TEST(ScaleRule, IsPyTorchsBitForBit) {
  for (const auto& run : trajectories().at("scaler")) {
    GradScalerOptions options;
    const auto& given = run.at("options");
    options.init_scale = given.value("init_scale", options.init_scale);
    options.growth_factor = given.value("growth_factor", options.growth_factor);
    options.backoff_factor = given.value("backoff_factor", options.backoff_factor);
    options.growth_interval = given.value("growth_interval", options.growth_interval);
    ScaleState state = first_state(options);
    const std::string marks = run.at("overflows");
    for (size_t t = 0; t < marks.size(); ++t) {
      state = next_state(state, {.found_inf = marks[t] == 'x'}, options);
      EXPECT_EQ(state.scale, run.at("track")[t][0].get<float>()) << given << " at " << t;
      EXPECT_EQ(state.growth_tracker, run.at("track")[t][1].get<int>()) << given << " at " << t;
    }
  }
}

TEST(ScaleRule, ALoweredIntervalGrowsAtTheNextCleanStep) {
  GradScalerOptions options{.growth_interval = 100};
  ScaleState state = first_state(options);
  for (int i = 0; i < 50; ++i) state = next_state(state, {}, options);
  options.growth_interval = 10;  // PyTorch's tracker is past it and never meets it again
  state = next_state(state, {}, options);
  EXPECT_EQ(state, (ScaleState{.scale = 131072, .growth_tracker = 0}));
}

TEST(ScaleRule, IntervalOneIsTheTextbookScaler) {
  EXPECT_EQ(walk("..x.", {.init_scale = 8, .growth_interval = 1}), (Scales{16, 32, 16, 32}));
}

TEST(ScaleRule, NeverLeavesTheNumbersThatHaveAReciprocal) {
  for (const double factor : {0.5, 1e-30, 0.9}) {
    for (const float scale :
         walk(std::string(400, 'x'), {.init_scale = 3, .backoff_factor = factor})) {
      ASSERT_GT(scale, 0);
      ASSERT_TRUE(std::isfinite(1 / scale)) << scale;
    }
  }
  for (const float scale :
       walk(std::string(400, '.'), {.growth_factor = 3, .growth_interval = 1})) {
    ASSERT_TRUE(std::isfinite(scale));
    ASSERT_GT(1 / scale, 0);
  }
}

TEST(ScaleRule, FloorAndCeiling) {
  EXPECT_EQ(walk("xxx", {.init_scale = 8, .min_scale = 3}), (Scales{4, 3, 3}));
  EXPECT_EQ(walk("...", {.init_scale = 8, .growth_interval = 1, .max_scale = 20}),
            (Scales{16, 20, 20}));
}

// Megatron-LM, DynamicGradScaler: the scale backs off when `hysteresis` overflows have come since
// the last growth.
TEST(ScaleRule, HysteresisBearsOverflowsUntilTheNextGrowth) {
  EXPECT_EQ(walk("x.x.x", {.init_scale = 64, .growth_interval = 100, .hysteresis = 2}),
            (Scales{64, 64, 32, 32, 16}));
  EXPECT_EQ(walk("x..x", {.init_scale = 64, .growth_interval = 2, .hysteresis = 2}),
            (Scales{64, 64, 128, 128}));
}

// DeepSpeed, DynamicLossScaler with consecutive_hysteresis: a clean step refills.
TEST(ScaleRule, HysteresisCanCountConsecutiveOverflowsOnly) {
  EXPECT_EQ(
      walk("x.x.xx",
           {.init_scale = 64, .growth_interval = 100, .hysteresis = 2, .refill_hysteresis = true}),
      (Scales{64, 64, 64, 64, 64, 32}));
}

TEST(ScaleRule, AStaticScaleStays) {
  EXPECT_EQ(walk("x..x", {.init_scale = 8, .growth_interval = 1, .mode = ScaleMode::kStatic}),
            (Scales{8, 8, 8, 8}));
}

TEST(ScaleRule, AmaxKeepsTheGreatestGradientOfTheWindowUnderTheLimit) {
  const GradScalerOptions options{.init_scale = 1024, .mode = ScaleMode::kAmax, .amax_window = 3};
  ScaleState state = first_state(options);
  const auto after = [&](ScaleInput input) {
    return (state = next_state(state, input, options)).scale;
  };
  EXPECT_EQ(after({.amax = 0}), 1024);        // nothing known: stays
  EXPECT_EQ(after({.amax = 1}), 16384);       // 2^14 x 1 = 16,384 < 32,752 <= 2^15
  EXPECT_EQ(after({.amax = 0.001F}), 16384);  // the window still holds 1
  EXPECT_EQ(after({.amax = 0.001F}), 16384);
  EXPECT_EQ(after({.amax = 0.001F}), 16777216);  // 2^24 x 0.001 = 16,777
  EXPECT_EQ(after({.found_inf = true}),
            4194304);                           // counts as 65,504 / 2^24, so 2^22 x that = 16,376
  EXPECT_EQ(after({.amax = 32752.0F / 4}), 2);  // 4 x 8,188 is the limit itself, and not under it
}

// 65,504 / 2^-114 is above fp32's greatest number, and counts as that.
TEST(ScaleRule, AmaxUnderTheLeastScaleStaysThere) {
  const GradScalerOptions options{.mode = ScaleMode::kAmax};
  ScaleState state = first_state(options);
  DeviceScale device;
  device.create(torch::kCPU, state, options, /*on_device=*/true);
  for (const bool found : {false, true, true}) {
    const float amax = std::numeric_limits<float>::max();
    state = next_state(state, {.found_inf = found, .amax = amax}, options);
    device.advance(torch::scalar_tensor(found ? 1.F : 0.F), torch::scalar_tensor(amax), options);
    EXPECT_EQ(state.scale, std::ldexp(1.F, -114));  // x 2^128 = 2^14 < 32,752 <= 2^15
    EXPECT_EQ(device.read().scale, state.scale);
  }
}

TEST(ScaleRule, OnADeviceItIsTheSameRule) {
  std::mt19937 random(1);
  const optim::testing::EmulatedDevice emulated;
  const at::Tensor like = torch::empty({0});
  const std::vector<GradScalerOptions> variants{
      {.growth_interval = 3},
      {.init_scale = 1000,
       .growth_factor = 1.7,
       .backoff_factor = 0.3,
       .growth_interval = 2,
       .min_scale = 2,
       .max_scale = 1e6},
      {.growth_interval = 4, .hysteresis = 3},
      {.growth_interval = 4, .hysteresis = 2, .refill_hysteresis = true},
      {.growth_factor = 1e9, .backoff_factor = 1e-12, .growth_interval = 1},
      {.mode = ScaleMode::kStatic},
      {.mode = ScaleMode::kAmax, .amax_window = 4}};
  for (const auto& options : variants) {
    ScaleState state = first_state(options);
    DeviceScale device;
    device.create(torch::kCPU, state, options, /*on_device=*/true);
    DeviceScale launched;  // by the kernel, or by tensor operations too
    launched.create(torch::kCPU, state, options, true, emulated.kernels_for(like, {}).device);
    SkipWatch watch, other;
    for (int t = 0; t < 200; ++t) {
      const ScaleInput input{.found_inf = random() % 4 == 0,
                             .amax = std::ldexp(1 + static_cast<float>(random() % 8) / 8,
                                                -static_cast<int>(random() % 20))};
      state = next_state(state, input, options);
      const at::Tensor found = torch::scalar_tensor(input.found_inf ? 1.F : 0.F);
      device.advance(found, torch::scalar_tensor(input.amax), options);
      std::vector<ScaleState> all{device.read()};
      if (launched.is_one_launch(options)) {
        launched.advance(found, {}, watch, options);
        all.push_back(launched.read());
        other.count(input.found_inf, state.scale);
        ASSERT_EQ(watch.latest().skips, other.latest().skips) << t;
        ASSERT_EQ(watch.latest().skips_in_a_row, other.latest().skips_in_a_row) << t;
        ASSERT_EQ(watch.latest().scale, state.scale) << t;
      }
      for (const ScaleState& seen : all) {
        ASSERT_EQ(seen.scale, state.scale) << t;
        ASSERT_EQ(seen.growth_tracker, state.growth_tracker) << t;
        ASSERT_EQ(seen.hysteresis_tracker, state.hysteresis_tracker) << t;
      }
    }
    EXPECT_EQ(launched.is_one_launch(options), options.mode != ScaleMode::kAmax);
  }
}

TEST(ScaleRule, OptionsOutOfRangeAreNamed) {
  const double nan = std::nan(""), inf = std::numeric_limits<double>::infinity();
  for (const double scale : {0.0, -1.0, nan, inf, 1e39, 1e-46})
    EXPECT_THROW(check({.init_scale = scale}), UsageError);
  for (const double factor : {1.0, 0.5, nan, inf})
    EXPECT_THROW(check({.growth_factor = factor}), UsageError);
  for (const double factor : {0.0, 1.0, -1.0, nan})
    EXPECT_THROW(check({.backoff_factor = factor}), UsageError);
  EXPECT_THROW(check({.growth_interval = 0}), UsageError);
  EXPECT_THROW(check({.min_scale = 1e9}), UsageError);
  EXPECT_THROW(check({.max_scale = 1}), UsageError);
  EXPECT_THROW(check({.hysteresis = 0}), UsageError);
  EXPECT_THROW(check({.amax_window = 0}), UsageError);
  EXPECT_THROW(check({.amax_limit = 0}), UsageError);
  EXPECT_THROW(check({.warn_after_skips = -1}), UsageError);
  EXPECT_NO_THROW(check({}));
}

// pow on a device may be one unit off, and then unscaling rounds.
TEST(ScaleRule, AnAmaxScaleOfADeviceIsAPowerOfTwoToTheBit) {
  for (int power = -1022; power <= 1023; ++power)
    EXPECT_EQ(DeviceScale::power_of_two(at::scalar_tensor(power, at::kInt)).item<double>(),
              std::ldexp(1.0, power));
  const GradScalerOptions options{.init_scale = 1, .mode = ScaleMode::kAmax, .amax_window = 1};
  for (int power = -149; power < 128; ++power) {
    const float amax = std::ldexp(1.0F, power);
    ScaleState host = first_state(options);
    DeviceScale device;
    device.create(at::kCPU, host, options, /*on_device=*/true);
    host = next_state(host, {.found_inf = false, .amax = amax}, options);
    device.advance(at::zeros({}), at::scalar_tensor(amax), options);
    EXPECT_EQ(device.read().scale, host.scale) << power;
  }
}

}  // namespace
}  // namespace demi
